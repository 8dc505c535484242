"""Images in files: what dockerd, skopeo and umoci write, and tars of a root; and what an image says about those who run it."""

import gzip
import io
import tarfile

import pytest
from conftest import run
from images import Image, Layer, busybox, file, folder, layout, symlink, tar, zstd
from server import wait_for

DOCKERFILE = """FROM made:1
USER ada
ENV COLOUR=blue EMPTY=
WORKDIR /home/ada/work
"""


@pytest.fixture(scope="module")
def saved(docker, place):
    """What the real dockerd writes: an image of its own making, from a tar, with steps on top of it."""
    docker("import", "--change", "ENV PATH=/bin", "-", "made:1", input=tar(*busybox(), file("etc/from", b"dockerd\n")))
    docker("build", "--tag", "made:2", "-", input=DOCKERFILE.encode())
    path = place / "made.tar"
    path.write_bytes(docker("save", "made:2"))
    return path


def people(house, template):
    """Who its commands are, where, and with which variables."""
    return house.shown(template, "id -un; pwd; echo $COLOUR; cat /etc/from").split()


def test_docker_save_is_read_from_a_file_and_from_stdin(house, saved):
    house.cove("template", "build", "saved", "--archive", saved)
    assert people(house, "saved") == ["ada", "/home/ada/work", "blue", "dockerd"]
    with saved.open("rb") as archive:
        house.cove("template", "build", "piped", "--archive", "-", stdin=archive)
    assert people(house, "piped") == ["ada", "/home/ada/work", "blue", "dockerd"]
    # Compressed as a whole, as people pass them on.
    for name, data in (("saved-gzip", gzip.compress(saved.read_bytes(), 1)), ("saved-zstd", zstd(saved.read_bytes()))):
        house.cove("template", "build", name, "--archive", "-", input=data)
        assert people(house, name) == ["ada", "/home/ada/work", "blue", "dockerd"]


def test_an_oci_layout_is_read_as_skopeo_and_umoci_write_it(house, saved, work):
    run("skopeo", "copy", f"docker-archive:{saved}", f"oci-archive:{work}/skopeo.tar:it")
    house.cove("template", "build", "skopeo", "--archive", work / "skopeo.tar")
    assert people(house, "skopeo") == ["ada", "/home/ada/work", "blue", "dockerd"]
    # A directory, which umoci adds a layer and settings to.
    run("skopeo", "copy", f"docker-archive:{saved}", f"oci:{work}/layout:it")
    (work / "more.tar").write_bytes(tar(file("etc/from", b"umoci\n")))
    run("umoci", "raw", "add-layer", "--image", f"{work}/layout:it", work / "more.tar")
    run("umoci", "config", "--image", f"{work}/layout:it", "--config.env", "COLOUR=green", "--config.user", "root")
    with tarfile.open(work / "layout.tar", "w") as packed:
        packed.add(work / "layout", ".")
    house.cove("template", "build", "umoci", "--archive", work / "layout.tar")
    assert people(house, "umoci") == ["root", "/home/ada/work", "green", "umoci"]


def test_an_archive_of_several_images_is_asked_for_one(house, docker, saved):
    docker("tag", "made:1", "other:1")
    both = docker("save", "made:2", "other:1")
    status, build = house.import_archive("several", both)
    failed = house.end_of(build)["failure"]["message"]
    assert status == 202 and "made:2" in failed and "other:1" in failed, failed
    house.take("one-of-them", both, image="other:1")
    assert people(house, "one-of-them") == ["root", "/root", "dockerd"]
    _, build = house.import_archive("none-of-them", both, image="third:1")
    assert "third:1" in house.end_of(build)["failure"]["message"]


@pytest.mark.parametrize("packed", [lambda data: data, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])
def test_the_tar_of_a_root_is_an_image(house, packed, request):
    name = f"root-{request.node.callspec.id}"
    content = tar(*busybox(), file("etc/from", name.encode()))
    house.cove("template", "build", name, "--archive", "-", input=packed(content))
    assert house.shown(name, "/bin/cat /etc/from") == name


def test_what_is_no_image_is_refused_and_leaves_nothing(house, work):
    for number, data in enumerate([b"", b"nonsense" * 1000, gzip.compress(b"nonsense"), layout([], {})]):
        path = work / f"{number}.tar"
        path.write_bytes(data)
        said = house.cove("template", "build", f"nonsense-{number}", "--archive", path, code=1)
        assert "error:" in said, said
    wait_for(lambda: not house.files()["spool"] and not house.files()["drafts"], 20, "nothing on the disk")


def test_the_commands_of_an_image_are_its_sandboxes_start(house):
    """ENTRYPOINT and CMD together, as the image's user, in its directory, with its variables."""
    line = 'echo "$0 $1 $(id -un) $(pwd) $COLOUR" > /tmp/started; exec sleep 1000'
    settings = {
        "User": "1234:1234",
        "Env": ["PATH=/bin", "COLOUR=red"],
        "WorkingDir": "/srv/work",
        "Entrypoint": ["sh", "-c", line, "zero"],
        "Cmd": ["it's one"],
    }
    image = Image(Layer(tar(*busybox(), folder("srv/work", uid=1234, gid=1234))), run=settings)
    house.take("starts", image.layout())
    sandbox = house.create("starts")
    wait_for(lambda: house.exec(sandbox, "cat /tmp/started")["stdout"] == "zero it's one ada /srv/work red\n", 10, "its start command")
    assert house.within(sandbox, "id -u; pwd; echo $COLOUR").split() == ["1234", "/srv/work", "red"]
    house.remove(sandbox)
    # A start command of one's own counts more.
    house.build("starts-other", {"template": "starts"}, start="echo other > /tmp/started; sleep 1000", ready="test -e /tmp/started")
    assert house.shown("starts-other", "cat /tmp/started") == "other\n"


def test_a_shell_that_waits_for_somebody_is_not_started(house, from_busy):
    sandbox = house.create(from_busy)
    assert house.within(sandbox, "id -u; pwd").split() == ["0", "/root"]
    status, processes = house.status_of(f"/api/sandboxes/{sandbox}/processes")
    assert status == 200 and [process["command"] for process in processes if process["exit"] is None] == [], processes
    house.remove(sandbox)


def test_settings_that_no_process_could_have_are_left_out(house):
    run_of = {"Env": ["PATH=/bin", "BAD\0NAME=x", "=x", "novalue", "GOOD=1", "GOOD=2"], "User": "", "WorkingDir": "relative/place"}
    house.take("odd", Image(Layer(tar(*busybox(), folder("relative/place"))), run=run_of).layout())
    assert house.shown("odd", "echo $GOOD; pwd; env | grep -c BAD || true").split() == ["2", "/relative/place", "0"]


def test_a_directory_that_the_image_lacks_is_made(house):
    """As container runtimes do: tools that write images without running anything in them rely on it."""
    settings = {"Env": ["PATH=/bin"], "WorkingDir": "/srv/not/there", "User": "ada"}
    house.take("elsewhere", Image(Layer(tar(*busybox())), run=settings).layout())
    assert house.shown("elsewhere", "pwd; stat -c '%u %a' . ..") == "/srv/not/there\n0 755\n0 755\n"
    # What is built on it starts there, too.
    house.build("on-elsewhere", {"dockerfile": "FROM elsewhere\nUSER root\nRUN pwd > where\n"})
    assert house.shown("on-elsewhere", "cat /srv/not/there/where; stat -c '%u %a' .") == "/srv/not/there\n0 755\n"
    # It is made where the image's own links lead, and never further.
    leads = {"Env": ["PATH=/bin"], "WorkingDir": "/srv/out/not/there"}
    house.take("leads", Image(Layer(tar(*busybox(), symlink("srv/out", "../../../home"))), run=leads).layout())
    assert house.shown("leads", "pwd -P") == "/home/not/there\n"
    # Where it cannot be made, whoever starts something there is told.
    blocked = {"Env": ["PATH=/bin"], "WorkingDir": "/etc/passwd/here"}
    house.take("blocked", Image(Layer(tar(*busybox())), run=blocked).layout())
    assert "/etc/passwd/here" in house.refused("on-blocked", {"dockerfile": "FROM blocked\nRUN pwd\n"})


def test_a_user_that_the_image_lacks_is_named(house):
    house.take("nobodys", Image(Layer(tar(*busybox())), run={"Env": ["PATH=/bin"], "User": "ghost"}).layout())
    status, told = house.ask("POST", "/api/sandboxes", house.key, {"template": "nobodys"})
    if status == 201:
        sandbox = told["id"]
        status, told = house.ask("POST", f"/api/sandboxes/{sandbox}/exec", house.key, {"shell": "id"})
        house.remove(sandbox)
    assert 400 <= status < 500 and "ghost" in str(told), (status, told)


def test_an_archive_goes_through_the_server_in_pieces(house):
    house.take("warm", tar(*busybox(), file("srv/small", b"x")))
    house.forget_peak()
    before = house.peak()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for info, data in busybox():
            archive.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("srv/large")
        info.size = 20_000_000
        archive.addfile(info, io.BytesIO(bytes(20_000_000)))
    house.take("large", content.getvalue())
    assert house.peak() - before < 16, f"{before} MiB before, {house.peak()} MiB at most"
