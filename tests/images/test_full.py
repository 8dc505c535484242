"""A small disk that fills up in the middle of a pull, a build and a snapshot: it is said, and when there is room all of it works again."""

import os
import pathlib
import subprocess
import tempfile

import pytest
from conftest import run
from house import House
from images import Image, Layer, busybox, file, tar
from registries import Breaking
from server import wait_for

MIB = 1 << 20
SIZE = 1500


class Disk:
    """An ext4 of its own in a file."""

    def __init__(self, folder):
        self.image, self.path = folder / "disk", folder / "d"
        with open(self.image, "wb") as file_:
            file_.truncate(SIZE * MIB)
        run("/sbin/mke2fs", "-q", "-t", "ext4", "-F", self.image)
        self.path.mkdir()
        run("mount", "-o", "loop", self.image, self.path)

    def fill(self):
        """To the last block."""
        with open(self.path / "ballast", "ab", buffering=0) as ballast:
            for size in (MIB, 4096):
                try:
                    while ballast.write(bytes([1]) * size) == size:
                        pass
                except OSError:
                    pass

    def make_room(self):
        (self.path / "ballast").unlink()

    def end(self):
        # The kernel lets go of what was mounted inside a moment later.
        wait_for(lambda: subprocess.run(["umount", self.path], capture_output=True).returncode == 0, 30, "the disk to be free")


@pytest.fixture(scope="module")
def small():
    """A server with its data on such a disk."""
    with tempfile.TemporaryDirectory(prefix="cove-full-", ignore_cleanup_errors=True) as folder:
        disk = Disk(pathlib.Path(folder))
        server = House(disk.path, 'private_targets = "127.0.0.1"\n')
        server.disk = disk
        yield server
        server.leave()
        disk.end()


@pytest.fixture(scope="module")
def ground(small, registry):
    """What there is before the trouble begins."""
    image = Image(Layer(tar(*busybox())), run={"Env": ["PATH=/bin"]})
    small.build("ground", {"image": registry.push("full/ground", "1", image)})
    sandbox = small.create("ground")
    small.within(sandbox, "echo precious > /srv/note; sync")
    return sandbox


def names_it(said):
    """Whoever reads it knows what is wrong."""
    return any(word in said.lower() for word in ("disk", "space left", "full"))


def heals(small):
    small.disk.make_room()
    wait_for(small.is_well, 60, "the server to be well")
    small.settles()


def test_before_anything_begins_it_is_refused(small, ground, registry):
    small.disk.fill()
    wait_for(lambda: not small.is_well(), 40, "the server to say that its disk is full")
    asked = [
        ("POST", "/api/templates", {"name": "refused", "from": {"template": "ground", "steps": [{"run": {"command": "true"}}]}}),
        ("POST", f"/api/sandboxes/{ground}/snapshots", {"name": "refused-snapshot"}),
        ("POST", f"/api/sandboxes/{ground}/fork", {}),
    ]
    for method, path, body in asked:
        status, told = small.ask(method, path, small.key, body)
        if path.endswith("/fork") and status == 200:
            status, told = 507, told["forks"][0]["error"]
        assert status == 507 and told["code"] == "disk_full", (path, status, told)
    status, told = small.ask("POST", "/api/images/import?name=refused", small.key, tar(*busybox()), {"Content-Type": "application/x-tar"})
    assert status == 507, (status, told)
    heals(small)
    for method, path, body in asked:
        status, told = small.ask(method, path, small.key, body)
        assert status in (200, 201, 202), (path, status, told)
        small.remove(*(fork["sandbox"]["id"] for fork in told.get("forks", [])))


def test_in_the_middle_of_a_pull(small, ground, registry):
    layers = [Layer(tar(*busybox())), *(Layer(tar(file(f"srv/{number}", bytes([number]) * 1000 + os.urandom(4 * MIB))), "plain") for number in range(4))]
    name = registry.push("full/pulled", "1", Image(*layers, run={"Env": ["PATH=/bin"]})).split("/", 1)[1]
    slow = Breaking(registry, slowly=2.0)
    try:
        _, build = small.start_build("pulled", {"image": f"{slow.host}/{name}"})
        wait_for(lambda: small.files()["spool"], 30, "the pull to begin")
        small.disk.fill()
        ended = ended_or_waits(small, build)
        if ended:
            assert ended["state"] == "error" and names_it(ended["failure"]["message"]), ended
    finally:
        slow.end()
    heals(small)
    again(small, build, "pulled", {"image": f"{registry.host}/{name}"})
    assert small.shown("pulled", "ls /srv | wc -l").strip() == "4"
    assert small.within(ground, "cat /srv/note") == "precious\n"


def ended_or_waits(small, build):
    """A build while the disk is full: it has ended, or its end could not be written and it is begun again later."""
    try:
        return small.end_of(build, 40)
    except AssertionError:
        return None


def again(small, build, name, source):
    """The build comes to its end; where that is a failure, another one succeeds."""
    if small.end_of(build, 120)["state"] != "ready":
        small.build(name, source)


def test_in_the_middle_of_a_build(small, ground):
    source = {"template": "ground", "steps": [{"run": {"command": "echo begun; sleep 3; head -c 200000000 /dev/urandom > /srv/data && sync"}}]}
    _, build = small.start_build("built", source)
    wait_for(lambda: "begun" in small.log_of(build).splitlines(), 30, "the step to begin")
    small.disk.fill()
    ended = ended_or_waits(small, build)
    if ended:
        log = small.log_of(build)
        assert ended["state"] == "error" and names_it(ended["failure"]["message"] + log), (ended, log)
    heals(small)
    again(small, build, "built", {"template": "ground", "steps": [{"run": {"command": "echo small > /srv/data"}}]})
    assert small.within(ground, "cat /srv/note") == "precious\n"


def test_in_the_middle_of_a_snapshot(small, ground):
    """The sandbox writes all the time, so that each snapshot needs room of its own."""
    small.within(ground, "nohup sh -c 'while :; do head -c 20000000 /dev/urandom > /srv/noise; sync; done' > /dev/null 2>&1 & true")
    taken, refused = [], []
    for number in range(6):
        if number == 2:
            small.disk.fill()
        status, told = small.ask("POST", f"/api/sandboxes/{ground}/snapshots", small.key, {"name": f"taken-{number}"})
        assert status in (201, 409, 503, 507), (status, told)
        (taken if status == 201 else refused).append(number)
    small.exec(ground, "kill $(ps | grep 'while :' | grep -v grep | awk '{print $1}'); true")
    assert refused, "the disk was full, and nobody met it"
    heals(small)
    for number in taken:
        assert small.shown(f"taken-{number}", "cat /srv/note") == "precious\n"
    for number in refused:
        assert small.status_of(f"/api/snapshots/taken-{number}")[0] == 404
    status, told = small.ask("POST", f"/api/sandboxes/{ground}/snapshots", small.key, {"name": "afterwards"})
    assert status == 201, told
