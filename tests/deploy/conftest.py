"""Places for servers, and PostgreSQL of a test's own."""

import os
import pathlib
import pwd
import subprocess
import tempfile

import pytest
from server import wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def place():
    """A folder with a short name: sockets are in it, whose paths the kernel limits."""
    with tempfile.TemporaryDirectory(prefix="cove-deploy-", ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


@pytest.fixture
def postgres(place):
    """A PostgreSQL from the distribution's packages, on a socket in a folder; gives its URL."""
    programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    folder = place / "pg"
    folder.mkdir()
    owner = pwd.getpwnam("postgres")
    place.chmod(0o755)
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    as_owner = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": [], "stdout": subprocess.DEVNULL, "cwd": folder}
    arguments = ["--username=cove", "--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale", "-D", folder / "data"]
    subprocess.run([programs / "initdb", *arguments], check=True, **as_owner)
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
    server = subprocess.Popen(
        [programs / "postgres", "-D", folder / "data", *options], stderr=open(folder / "log", "w"), **as_owner
    )
    url = f"postgres:///cove?host={folder}&user=cove"
    made = ["psql", "-qAt", f"postgres:///postgres?host={folder}&user=cove", "-c", "CREATE DATABASE cove"]
    wait_for(lambda: subprocess.run(made, capture_output=True).returncode == 0, 30, "PostgreSQL")
    yield url
    server.terminate()
    server.wait(30)
