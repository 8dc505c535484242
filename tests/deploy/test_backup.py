"""deploy/backup and deploy/restore, as docs/how-to/backup.md tells: what was there is there again, on either database."""

import shutil
import subprocess

import pytest
from conftest import ROOT
from server import Server

BACKUP, RESTORE = ROOT / "deploy/backup", ROOT / "deploy/restore"


def filled(server):
    """A stopped sandbox with a file, one more with a label, and a key."""
    _, box = server.ask("POST", "/api/sandboxes", server.key, {"name": "box"})
    content = f"/api/sandboxes/{box['id']}/files/content?path=/home/user/notes.txt"
    status, told = server.ask("PUT", content, server.key, b"kept", {"Content-Type": "application/octet-stream"})
    assert status < 300, told
    server.ask("POST", f"/api/sandboxes/{box['id']}/stop", server.key)
    server.ask("POST", "/api/sandboxes", server.key, {"name": "other", "labels": {"team": "a"}})
    _, key = server.ask("POST", "/api/keys", server.key, {"name": "ci", "scope": "write"})
    return box["id"], content, key["secret"]


def found(server, box, content, key):
    status, told = server.ask("POST", f"/api/sandboxes/{box}/start", key)
    assert status < 300, told
    assert server.ask("GET", content, key) == (200, b"kept")
    _, listed = server.ask("GET", "/api/sandboxes", key)
    names = {sandbox["name"]: sandbox for sandbox in listed["items"]}
    assert set(names) == {"box", "other"}
    assert names["other"]["labels"] == {"team": "a"}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def end_sandboxes(server):
    _, listed = server.ask("GET", "/api/sandboxes", server.key)
    for sandbox in listed["items"]:
        server.ask("DELETE", f"/api/sandboxes/{sandbox['id']}", server.key)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request):
    return [request.getfixturevalue("postgres")] if request.param == "postgres" else []


def test_what_was_saved_is_there_again(place, database):
    flags = [word for url in database for word in ("--database-url", url)]
    server = Server(place, *flags)
    facts = filled(server)
    _, listed = server.ask("GET", "/api/sandboxes", server.key)
    for sandbox in listed["items"]:
        server.ask("POST", f"/api/sandboxes/{sandbox['id']}/stop", server.key)
    server.stop()
    run(BACKUP, server.data, place / "saved", *database)
    # The machine is lost: the directory, and the database.
    shutil.rmtree(server.data)
    for url in database:
        run("psql", "-q", url, "-c", "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    run(RESTORE, place / "saved", server.data, *database)
    server.start()
    try:
        found(server, *facts)
    finally:
        end_sandboxes(server)
        server.leave()


@pytest.mark.parametrize("state", ["running", "paused"])
def test_files_of_sandboxes_that_live_on_are_not_saved(place, state):
    server = Server(place)
    try:
        _, box = server.ask("POST", "/api/sandboxes", server.key, {"name": "box"})
        if state == "paused":
            status, told = server.ask("POST", f"/api/sandboxes/{box['id']}/pause", server.key)
            assert status < 300, told
        server.stop()
        done = subprocess.run([BACKUP, server.data, place / "saved"], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"still run or are paused: {box['id']}" in done.stderr, done.stderr
        assert not (place / "saved").exists()
        server.start()
    finally:
        end_sandboxes(server)
        server.leave()


def test_a_directory_in_use_is_not_saved(place):
    server = Server(place)
    try:
        done = subprocess.run([BACKUP, server.data, place / "saved"], capture_output=True, text=True)
        assert done.returncode == 1
        assert "a server uses" in done.stderr
        assert not (place / "saved").exists()
    finally:
        server.leave()
