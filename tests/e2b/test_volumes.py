"""Volumes: in sandboxes, and by their own API with a token."""

import os
import urllib.parse

import pytest
from conftest import name, needs_new_sdk
from e2b import Sandbox, Volume
from e2b.exceptions import NotFoundException, VolumeException

pytestmark = needs_new_sdk


@pytest.fixture
def volume(server):
    made = Volume.create(name("volume"))
    yield made
    Volume.destroy(made.volume_id)


def test_a_volume_is_made_found_and_destroyed(server):
    called = name("data")
    made = Volume.create(called)
    assert made.name == called and made.token
    assert (made.volume_id, called) in [(one.volume_id, one.name) for one in Volume.list()]
    assert Volume.get_info(made.volume_id).token == made.token
    assert Volume.connect(made.volume_id).name == called
    with pytest.raises(VolumeException, match="400"):
        Volume.create(called)
    assert Volume.destroy(made.volume_id) is True
    assert Volume.destroy(made.volume_id) is False
    with pytest.raises(NotFoundException):
        Volume.get_info(made.volume_id)
    for wrong in ("", "a/b", "a b", "x" * 200):
        with pytest.raises(VolumeException):
            Volume.create(wrong)


def test_two_sandboxes_share_a_volume(volume, create):
    one = create(volume_mounts={"/mnt/data": volume})
    other = create(volume_mounts={"/srv/shared": volume.name})
    one.commands.run("echo from one > /mnt/data/a")
    assert other.commands.run("cat /srv/shared/a").stdout == "from one\n"
    other.commands.run("mv /srv/shared/a /srv/shared/b && mkdir /srv/shared/d && ln -s b /srv/shared/l")
    assert one.commands.run("cat /mnt/data/l; stat -c %U /mnt/data/d").stdout == "from one\nuser\n"
    # A lock of one holds for the other.
    held = one.commands.run("flock /mnt/data/b sleep 30", background=True)
    try:
        other.commands.run("for i in $(seq 50); do flock -n /srv/shared/b true || exit 0; sleep 0.1; done; exit 1")
    finally:
        held.kill()
    assert one.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]


def test_a_volume_outlives_its_sandboxes_and_is_not_destroyed_while_one_has_it(volume, create):
    first = create(volume_mounts={"/mnt/data": volume})
    first.commands.run("echo kept > /mnt/data/a")
    with pytest.raises(VolumeException, match="409"):
        Volume.destroy(volume.volume_id)
    assert first.pause() is True
    with pytest.raises(VolumeException, match="409"):
        Volume.destroy(volume.volume_id)
    first.kill()
    second = create(volume_mounts={"/mnt/data": volume})
    assert second.commands.run("cat /mnt/data/a").stdout == "kept\n"


def test_a_volume_is_no_part_of_a_snapshot(volume, create):
    box = create(volume_mounts={"/mnt/data": volume})
    box.commands.run("echo on the volume > /mnt/data/a")
    taken = box.create_snapshot()
    try:
        assert not create(taken.snapshot_id).files.exists("/mnt/data/a")
    finally:
        Sandbox.delete_snapshot(taken.snapshot_id)


def test_what_cannot_be_mounted_is_refused(server, volume):
    create = lambda mounts: server.ask("POST", "/e2b/v2/sandboxes", server.key, {"templateID": "base", "volumeMounts": mounts})
    assert create([{"name": name("nobody"), "path": "/mnt"}])[0] == 400
    for path in ("relative", "/", "/proc", "/etc/x", "/a/../etc"):
        assert create([{"name": volume.name, "path": path}])[0] == 400, path
    status, told = create([{"name": volume.name, "path": "/mnt", "readonly": True}])
    assert status == 400 and "readonly" in told["message"]


def test_files_are_written_and_read_without_a_sandbox(volume, create):
    written = volume.write_file("/hello.txt", "hello")
    assert (written.name, written.path, written.size, written.mode, written.type.value) == ("hello.txt", "/hello.txt", 5, 0o644, "file")
    assert volume.read_file("/hello.txt") == "hello" and volume.read_file("hello.txt", format="bytes") == b"hello"
    large = os.urandom(8 << 20)
    volume.write_file("/large", large)
    assert b"".join(volume.read_file("/large", format="stream")) == large
    # Once there, it is replaced by those who say so.
    with pytest.raises(VolumeException, match="409"):
        volume.write_file("/hello.txt", "again")
    volume.write_file("/hello.txt", "again", force=True)
    assert volume.read_file("/hello.txt") == "again"
    # The sandbox sees the same files, as its own user.
    box = create(volume_mounts={"/mnt/data": volume})
    assert box.commands.run("cat /mnt/data/hello.txt; stat -c %U:%a /mnt/data/hello.txt").stdout == "againuser:644\n"
    box.commands.run("echo inside > /mnt/data/inside; ln -s /etc/passwd /mnt/data/link")
    assert volume.read_file("/inside") == "inside\n"
    link = volume.get_info("/link")
    assert (link.type.value, link.target) == ("symlink", "/etc/passwd")
    # Where a link points is nothing to this API.
    with pytest.raises(VolumeException):
        volume.read_file("/link")


def test_directories_and_attributes(volume):
    with pytest.raises(NotFoundException):
        volume.make_dir("/a/b/c")
    made = volume.make_dir("/a/b/c", force=True, mode=0o700)
    assert (made.path, made.type.value, made.mode) == ("/a/b/c", "directory", 0o700)
    with pytest.raises(VolumeException, match="409"):
        volume.make_dir("/a")
    assert volume.make_dir("/a", force=True).path == "/a"
    with pytest.raises(NotFoundException):
        volume.write_file("/nowhere/file", "x")
    volume.write_file("/a/file", "x", uid=5, gid=6, mode=0o600)
    changed = volume.update_metadata("/a/file", uid=7, mode=0o640)
    assert (changed.uid, changed.gid, changed.mode) == (7, 6, 0o640)
    assert [entry.path for entry in volume.list("/")] == ["/a"]
    assert [entry.path for entry in volume.list("/", depth=3)] == ["/a", "/a/b", "/a/b/c", "/a/file"]
    assert volume.get_info("/").name == "/"
    volume.remove("/a")
    assert not volume.exists("/a") and volume.list("/") == []
    with pytest.raises(NotFoundException):
        volume.remove("/a")


def content(server, volume, method, query, token, body=None, below="/e2b"):
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return server.ask(method, f"{below}/volumecontent/{volume}/{query}", None, body, headers)


def test_the_token_opens_one_volume_and_nothing_else(server, volume, stranger):
    other = Volume.create(name("other"))
    theirs = Volume.create(name("theirs"), api_key=stranger)
    try:
        path = "path?path=/"
        assert content(server, volume.volume_id, "GET", path, volume.token)[0] == 200
        # At the root too, where no prefix is configured.
        assert content(server, volume.volume_id, "GET", path, volume.token, below="")[0] == 200
        refused = [
            content(server, volume.volume_id, "GET", path, token)
            for token in (None, "", "x", server.key, other.token, theirs.token, volume.token[:-1])
        ]
        refused += [content(server, one, "GET", path, volume.token) for one in (other.volume_id, theirs.volume_id, "a" * 20, "x")]
        # One that is another's, one that is not there and a wrong token look the same.
        assert {(status, told["code"]) for status, told in refused} == {(401, "unauthenticated")}, refused
        assert server.ask("GET", "/e2b/volumes", None, None, {"Authorization": f"Bearer {volume.token}"})[0] == 401
        for method, path in (("GET", f"/e2b/volumes/{theirs.volume_id}"), ("DELETE", f"/e2b/volumes/{theirs.volume_id}")):
            assert server.ask(method, path, server.key)[0] == 404
        assert theirs.volume_id not in [one.volume_id for one in Volume.list()]
        body = {"templateID": "base", "volumeMounts": [{"name": theirs.name, "path": "/mnt"}]}
        assert server.ask("POST", "/e2b/v2/sandboxes", server.key, body)[0] == 400
        _, reader = server.ask("POST", "/api/keys", server.key, {"name": "r", "scope": "read"})
        assert server.ask("GET", f"/e2b/volumes/{volume.volume_id}", reader["secret"])[1]["token"] == ""
    finally:
        Volume.destroy(other.volume_id)
        Volume.destroy(theirs.volume_id, api_key=stranger)


def test_no_path_leads_out_of_a_volume(server, volume, create):
    box = create(volume_mounts={"/mnt/data": volume})
    box.commands.run("ln -s / /mnt/data/root; ln -s /proc/self/root /mnt/data/magic; mkfifo /mnt/data/pipe")
    for path in ("../etc/passwd", "/../../etc/passwd", "root/etc/passwd", "magic/etc/passwd", "pipe"):
        quoted = urllib.parse.quote(path)
        for method, query, body in (
            ("GET", f"file?path={quoted}", None),
            ("PUT", f"file?path={quoted}/x", b"x"),
            ("POST", f"dir?path={quoted}/x&force=true", None),
            ("DELETE", f"path?path={quoted}/x", None),
        ):
            status, told = content(server, volume.volume_id, method, query, volume.token, body)
            assert status in (400, 404, 409), (method, path, status, told)
    for query in ("path?path=a&pth=b", "path", "dir?path=/&depth=x", "path?path=a&path=b"):
        assert content(server, volume.volume_id, "GET", query, volume.token)[0] == 400, query
    status, told = content(server, volume.volume_id, "PATCH", "path?path=/", volume.token, {"owner": 1})
    assert status == 400 and "owner" in told["message"]
