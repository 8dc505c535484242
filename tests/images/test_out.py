"""Out again: what we write is read by dockerd, skopeo and umoci, goes to a registry, and comes back as it was."""

import http.client
import json
import tarfile

import pytest
from conftest import run
from images import busybox, capability, file, folder, hard_link, tar

DAC_OVERRIDE = 1

CHANGES = """set -e
rm /etc/greeting
rm -r /srv/replaced && mkdir /srv/replaced && echo new > /srv/replaced/new
rm -r /srv/gone
mv /srv/moved /srv/elsewhere
echo changed > /srv/changed
ln /srv/changed /srv/second-name
ln -s ../srv/changed /srv/link
mkfifo /srv/pipe
chown 1234:4321 /srv/changed && chmod 2640 /srv/changed
truncate -s 8000000 /srv/sparse
mkdir -p /srv/deep/er && chmod 700 /srv/deep
"""

LOOK = """ls -a /srv /srv/replaced; cat /srv/changed /srv/elsewhere/inner; stat -c '%u %g %a %h %s' /srv/changed /srv/sparse; stat -c '%u %g %a' /srv/deep
readlink /srv/link; test -p /srv/pipe; test ! -e /etc/greeting; test ! -e /srv/replaced/old; test ! -e /srv/gone; stat -c %u /home/ada"""


@pytest.fixture(scope="module")
def ground(house):
    """A template with something to be changed."""
    with open("/bin/busybox", "rb") as program:
        powerful = file("cap/cat", program.read(), 0o755, **capability(DAC_OVERRIDE))
    extra = [
        file("etc/greeting", b"hello\n"),
        file("etc/secret", b"root's own\n", 0o600),
        folder("cap"),
        powerful,
        folder("srv/replaced"),
        file("srv/replaced/old", b"old"),
        folder("srv/gone"),
        file("srv/gone/inner", b"x"),
        folder("srv/moved"),
        file("srv/moved/inner", b"moved\n"),
        file("srv/changed", b"unchanged\n"),
        hard_link("srv/kept", "srv/changed"),
    ]
    house.take("ground", tar(*busybox(), *extra))
    return "ground"


@pytest.fixture(scope="module")
def moved(house, ground, place):
    """A snapshot of a sandbox that changed, removed and moved things; exported. Gives the file and how it looks inside."""
    sandbox = house.create(ground, env={"PATH": "/bin", "COLOUR": "blue"}, user="root")
    house.within(sandbox, CHANGES)
    looks = house.within(sandbox, LOOK)
    house.cove("snapshot", "create", sandbox, "--name", "moved")
    path = place / "moved.tar"
    house.cove("snapshot", "export", "moved", path)
    house.remove(sandbox)
    return path, looks


def docker_runs(docker, image, line, *flags):
    return docker("run", "--rm", "--network", "none", *flags, image, "/bin/sh", "-c", line).decode()


def test_dockerd_loads_and_runs_what_was_exported(docker, moved):
    path, looks = moved
    assert b"moved:latest" in docker("load", "--input", path)
    assert docker_runs(docker, "moved:latest", LOOK) == looks
    assert docker_runs(docker, "moved:latest", "echo $COLOUR") == "blue\n"
    # File capabilities are still the file's.
    assert docker_runs(docker, "moved:latest", "/cap/cat /etc/secret", "--user", "1234") == "root's own\n"


def test_a_snapshot_comes_back_as_it_was(house, moved, work):
    path, looks = moved
    house.cove("snapshot", "import", path, "returned")
    assert house.shown("returned", LOOK) == looks
    assert house.shown("returned", "/cap/cat /etc/secret", user="ada") == "root's own\n"
    # Out once more: the same files, whatever way they took.
    house.cove("template", "export", "returned", work / "again.tar")
    house.cove("template", "build", "twice", "--archive", work / "again.tar")
    assert house.shown("twice", LOOK) == looks


def test_skopeo_and_umoci_read_what_was_exported(moved, work):
    path, _ = moved
    told = json.loads(run("skopeo", "inspect", f"oci-archive:{path}"))
    assert told["Os"] == "linux" and told["Architecture"] == "amd64" and len(told["Layers"]) == 2, told
    assert "COLOUR=blue" in told["Env"]
    assert json.loads(run("skopeo", "inspect", f"docker-archive:{path}"))["Layers"]
    with tarfile.open(path) as archive:
        names = [entry.get("annotations", {}).get("org.opencontainers.image.ref.name") for entry in json.load(archive.extractfile("index.json"))["manifests"]]
        archive.extractall(work / "layout", filter="data")
    (name,) = {name for name in names if name}
    run("umoci", "unpack", "--image", f"{work}/layout:{name}", work / "bundle")
    root = work / "bundle/rootfs"
    assert (root / "srv/changed").read_text() == "changed\n" and not (root / "etc/greeting").exists()
    assert not (root / "srv/gone").exists() and [entry.name for entry in (root / "srv/replaced").iterdir()] == ["new"]
    # Holes take no room in it.
    assert (root / "srv/sparse").stat().st_size == 8_000_000 and path.stat().st_size < 6_000_000


def test_it_goes_to_a_registry_by_anybodys_tools_and_is_pulled_again(house, docker, registry, moved):
    path, looks = moved
    run("skopeo", "copy", "--dest-tls-verify=false", f"oci-archive:{path}", f"docker://{registry.host}/out/moved:skopeo")
    house.build("by-skopeo", {"image": f"{registry.host}/out/moved:skopeo"})
    assert house.shown("by-skopeo", LOOK) == looks
    docker("load", "--input", path)
    docker("tag", "moved:latest", f"{registry.host}/out/moved:docker")
    docker("push", f"{registry.host}/out/moved:docker")
    told = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{registry.host}/out/moved:docker"))
    house.build("by-docker", {"image": f"{registry.host}/out/moved@{told['Digest']}"})
    assert house.shown("by-docker", LOOK) == looks


def test_a_build_leaves_with_its_settings(house, docker, busy_name, work):
    text = f'FROM {busy_name}\nUSER ada\nENV COLOUR=green\nWORKDIR /home/ada\nRUN echo one > one\nRUN rm one && echo two > two\nENTRYPOINT ["sh", "-c"]\nCMD ["cat two; id -u; pwd; echo $COLOUR"]\n'
    house.build("leaves", {"dockerfile": text})
    house.cove("template", "export", "leaves", work / "leaves.tar")
    docker("load", "--input", work / "leaves.tar")
    assert docker("run", "--rm", "--network", "none", "leaves:latest").decode().split() == ["two", "1234", "/home/ada", "green"]
    # Nothing of a step that another took back.
    assert docker_runs(docker, "leaves:latest", "ls /home/ada", "--entrypoint", "") == "two\n"


def test_an_export_that_nobody_reads_to_the_end_leaves_nothing(house, from_busy, work):
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", house.port, timeout=30)
        connection.request("GET", f"/api/templates/{from_busy}/export", headers={"Authorization": f"Bearer {house.key}"})
        answer = connection.getresponse()
        assert answer.status == 200 and len(answer.read(1000)) == 1000
        connection.close()
    assert not house.files()["spool"]
    # Turns are given back: others can export.
    house.cove("template", "export", from_busy, work / "whole.tar")
