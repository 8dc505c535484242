"""Out again: what we write is read by dockerd, skopeo and umoci, is pushed to a registry, and comes back as it was."""

import base64
import http.client
import json
import re
import tarfile
import threading

import pytest
from conftest import PEOPLE, run
from house import House
from images import busybox, capability, digest, file, folder, hard_link, tar
from server import wait_for

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


def test_a_snapshot_is_pushed_and_everybodys_tools_read_it(house, docker, registry, moved):
    _, looks = moved
    target = f"{registry.host}/out/pushed:v1"
    said = house.cove("snapshot", "push", "moved", target)
    assert re.fullmatch(rf"{registry.host}/out/pushed@sha256:[0-9a-f]{{64}}\n", said), said
    told = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{target}"))
    assert said.strip().endswith(told["Digest"]) and len(told["Layers"]) == 2 and "COLOUR=blue" in told["Env"], told
    docker("pull", target)
    assert docker_runs(docker, target, LOOK) == looks
    house.build("by-push", {"image": said.strip()})
    assert house.shown("by-push", LOOK) == looks
    # The same again under another tag: the layers are there.
    before = registry.uploads()
    house.cove("template", "push", "moved", f"{registry.host}/out/pushed:v2")
    assert registry.uploads() - before <= 1, "more than another config was sent"
    listed = json.loads(house.cove("template", "pushes", "--json"))
    assert [push["state"] for push in listed[:2]] == ["done", "done"] and listed[0]["image"].endswith("out/pushed:v2")


def test_a_registry_with_a_password_is_pushed_to_by_who_has_it(house, private_registry, from_busy):
    target = f"{private_registry.host}/team/pushed:v1"
    assert "credentials" in house.cove("template", "push", from_busy, target, code=1)
    mine = ("--registry-user", "grace")
    assert "COVE_REGISTRY_PASSWORD" in house.cove("template", "push", from_busy, target, *mine, code=2)
    wrong = house.cove("template", "push", from_busy, target, *mine, code=1, environment={"COVE_REGISTRY_PASSWORD": "wrong-word"})
    assert "credentials" in wrong and "wrong-word" not in wrong, wrong
    house.cove("template", "push", from_busy, target, *mine, environment={"COVE_REGISTRY_PASSWORD": PEOPLE["grace"]})
    run("skopeo", "inspect", "--tls-verify=false", f"--creds=grace:{PEOPLE['grace']}", f"docker://{target}")
    # It is nowhere: not in the database, not in the log of the server.
    for table in ("pushes", "build_logs", "jobs"):
        assert PEOPLE["grace"] not in str(house.rows(f"SELECT * FROM {table}")), table
    assert PEOPLE["grace"] not in house.said()


@pytest.fixture(scope="module")
def operators(place, private_registry):
    """A server that is somebody at a registry, as `docker login` writes it."""
    folder_ = place / "operators"
    folder_.mkdir()
    word = base64.b64encode(f"grace:{PEOPLE['grace']}".encode()).decode()
    (folder_ / "registries.json").write_text(json.dumps({"auths": {private_registry.host: {"auth": word}}}))
    one = House(folder_, f'private_targets = "127.0.0.1"\n[images]\ncredentials = "{folder_}/registries.json"\n')
    one.take("busy", tar(*busybox()))
    yield one
    one.leave()


def test_what_the_operator_is_at_a_registry_counts_for_operators_pushes_and_everybodys_pulls(operators, private_registry):
    target = f"{private_registry.host}/operators/busy:1"
    pushed = operators.push("busy", target)
    assert pushed["digest"] in run("skopeo", "inspect", "--tls-verify=false", f"--creds=grace:{PEOPLE['grace']}", f"docker://{target}").decode()
    stranger = operators.another_organisation()
    operators.build("theirs", {"image": target}, key=stranger)
    refused = operators.push("theirs", f"{private_registry.host}/operators/theirs:1", "error", key=stranger)
    assert "credentials" in refused["failure"], refused


def test_a_push_is_cancelled_and_one_whose_server_died_is_done_again(operators, grasping):
    release, begun = threading.Event(), threading.Event()

    def waits(handler):
        begun.set()
        release.wait(60)
        handler.tell(202, Location="/v2/x/blobs/uploads/1")

    grasping.instead[("POST", "/uploads/")] = waits
    push = operators.start_push("busy", f"{grasping.host}/x:1")
    assert begun.wait(30)
    assert operators.ask("POST", f"{push}/cancel", operators.key)[1]["state"] == "cancelled"
    begun.clear()
    again = operators.start_push("busy", f"{grasping.host}/x:2")
    with_password = operators.start_push("busy", f"{grasping.host}/x:3", registry={"username": "ada", "password": "p"})
    assert begun.wait(30)
    operators.kill()
    release.set()
    operators.start()
    assert operators.pushed(again)["state"] == "done"
    ended = operators.pushed(with_password)
    assert ended["state"] == "error" and "memory alone" in ended["failure"], ended
    assert operators.pushed(push)["state"] == "cancelled"
    assert not operators.files()["spool"]


def test_a_registry_that_means_harm_gets_nothing_and_leads_nowhere(house, from_busy, grasping):
    def sends(place, status=307):
        return lambda handler: handler.tell(status, Location=place)

    def endless(handler):
        handler.send_response(400)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            return

    def realm(handler):
        handler.tell(401, WWW_Authenticate='Bearer realm="http://169.254.169.254/token",service="x"')

    claims = digest(b"something else")
    cases = [
        (("HEAD", "/blobs/"), sends("http://169.254.169.254/latest/meta-data/"), r"may not be reached|not https"),
        (("HEAD", "/blobs/"), sends("https://10.0.0.1/x"), r"may not be reached"),
        (("HEAD", "/blobs/"), lambda handler: handler.tell(200, Docker_Content_Digest=claims), claims),
        (("HEAD", "/blobs/"), realm, r"may not be reached|not https"),
        (("POST", "/uploads/"), sends("http://169.254.169.254/up", 202), r"another host"),
        (("POST", "/uploads/"), sends("http://10.0.0.1/up"), r"another place"),
        (("POST", "/uploads/"), lambda handler: handler.tell(202), r"where to upload"),
        (("POST", "/uploads/"), endless, r"answers 400"),
        (("POST", "/uploads/"), lambda handler: handler.tell(404), r"does not take it"),
        (("PUT", "/uploads/"), sends("http://10.0.0.1/up", 308), r"another place"),
        (("PUT", "/uploads/"), lambda handler: handler.tell(201, Docker_Content_Digest=claims), claims),
        (("PUT", "/uploads/"), lambda handler: handler.tell(400), r"answers 400"),
        (("PUT", "/manifests/"), sends("https://10.0.0.1/x"), r"another place"),
        (("PUT", "/manifests/"), lambda handler: handler.tell(201, Docker_Content_Digest=claims), claims),
        (("PUT", "/manifests/"), lambda handler: handler.tell(403), r"credentials"),
    ]
    for place_, answer, words in cases:
        grasping.instead = {place_: answer}
        ended = house.push(from_busy, f"{grasping.host}/x:1", "error", registry={"username": "ada", "password": "sesame"})
        assert re.search(words, ended["failure"]), (place_, ended["failure"])
        assert "sesame" not in str(ended)
    # A password goes to whom it was named for, once it asks for one.
    assert not [path for _, path, headers in grasping.asked if "authorization" in {name.lower() for name in headers}]
    grasping.instead = {}
    assert house.push(from_busy, f"{grasping.host}/x:1")["digest"].startswith("sha256:")
    wait_for(lambda: not house.files()["spool"], 10, "nothing on the disk")


def test_where_nothing_may_be_pushed_is_said_by_name(house, registry, from_busy):
    for image, words in [
        (f"{registry.host}/mirror/library/debian:12", "mirror of this server"),
        (f"{registry.host}/out/x@{digest(b'x')}", "under a tag"),
        ("not a name", "no image reference"),
    ]:
        status, told = house.ask("POST", f"/api/templates/{from_busy}/push", house.key, {"image": image})
        assert status == 400 and words in told["message"], (image, status, told)
    assert "may not be reached" in house.push(from_busy, "10.0.0.1/x:1", "error")["failure"]
    assert "this machine's own programs" in house.cove("template", "push", "base", f"{registry.host}/out/base:1", code=1)


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
