"""The server, the registries and the daemon that the tests share, and images in them."""

import pathlib
import signal
import subprocess
import tempfile

import pytest
from docker import Docker
from house import House
from images import Image, Layer, busybox, file, tar
from registries import Grasping, Lying, Registry

# A stage that takes too long is told to end: daemons and mounts go with it.
signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end"))

PEOPLE = {"grace": "correct-horse-battery"}


@pytest.fixture(scope="session")
def place():
    """A folder with a short name: sockets are in it, whose paths the kernel limits."""
    with tempfile.TemporaryDirectory(prefix="cove-images-", ignore_cleanup_errors=True) as folder:
        pathlib.Path(folder).chmod(0o755)
        yield pathlib.Path(folder)


@pytest.fixture(scope="session")
def registry(place):
    one = Registry(place / "registry")
    yield one
    one.end()


@pytest.fixture(scope="session")
def private_registry(place):
    one = Registry(place / "private", PEOPLE)
    yield one
    one.end()


@pytest.fixture(scope="session")
def liar():
    one = Lying()
    yield one
    one.end()


@pytest.fixture
def grasping():
    one = Grasping()
    yield one
    one.end()


@pytest.fixture(scope="session")
def house(place, registry):
    """The server of most tests: it may reach loopback, and has names and places of its own for images."""
    settings = f"""
private_targets = "127.0.0.1"
[images]
aliases = "ubuntu={registry.host}/team/busy, vendor/own=template:base"
mirrors = "docker.io={registry.host}/mirror"
"""
    one = House(place / "house", settings)
    yield one
    one.leave()


@pytest.fixture(scope="session")
def tight(place):
    """A server whose builds get little of everything. Tenants may reach this machine's loopback: registries are there."""
    settings = """
private_targets = "127.0.0.1"
[builds]
timeout_seconds = 60
memory = 268435456
disk = 67108864
image_bytes = 2097152
file_bytes = 16777216
"""
    one = House(place / "tight", settings)
    yield one
    one.leave()


@pytest.fixture(scope="session")
def busy():
    """The smallest image that commands run in; its second layer says which one it is."""
    return Image(Layer(tar(*busybox())), Layer(tar(file("etc/greeting", b"hello\n"))), run={"Env": ["PATH=/bin"], "Cmd": ["sh"]})


@pytest.fixture(scope="session")
def busy_name(registry, busy):
    """Where it is in the registry."""
    registry.push("team/busy", "latest", busy)
    return registry.push("team/busy", "v1", busy)


@pytest.fixture(scope="session")
def from_busy(house, busy_name):
    """A template of it."""
    house.build("busy", {"image": busy_name})
    return "busy"


@pytest.fixture(scope="session")
def docker(place):
    one = Docker(place / "docker")
    yield one
    one.end()


@pytest.fixture
def work(place):
    """A folder for the files of one test."""
    with tempfile.TemporaryDirectory(dir=place, prefix="work-") as folder:
        yield pathlib.Path(folder)


def run(*words, **rest):
    """One of Debian's tools, which must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=120, **rest)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:].decode(errors="replace"))
    return done.stdout
