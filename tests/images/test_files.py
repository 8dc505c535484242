"""What an image's files are inside: owners, modes, links, holes, capabilities, and what upper layers take away."""

import io
import os
import pathlib
import tarfile

import pytest
from images import Image, Layer, attribute, busybox, capability, file, folder, hard_link, symlink, tar

DAC_OVERRIDE = 1


def sparse():
    """A file with a hole of 300 MB, as GNU tar writes it (pax 1.0: the map is before the data)."""
    size, data = 300_000_000, b"end"
    described = f"1\n{size - 3}\n3\n".encode().ljust(512, b"\0")
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "srv/sparse", "GNU.sparse.realsize": str(size)}
    return file("srv/GNUSparseFile.0/sparse", described + data, **records)


@pytest.fixture(scope="module")
def layered(house, registry):
    """Three layers that add, change and take away."""
    with open("/bin/busybox", "rb") as program:
        content = program.read()
    lowest = tar(
        *busybox(),
        file("etc/secret", b"root's own\n", 0o600),
        folder("cap"),
        file("cap/cat", content, 0o755, **capability(DAC_OVERRIDE)),
        folder("srv/kept", uid=1234, gid=4321, mode=0o2750),
        file("srv/kept/one", b"1", uid=1234, gid=4321, mode=0o640, **attribute("user.colour", b"blue")),
        hard_link("srv/kept/two", "srv/kept/one"),
        symlink("srv/link", "kept/one"),
        sparse(),
        file("srv/removed", b"x"),
        folder("srv/emptied"),
        file("srv/emptied/below", b"x"),
        folder("srv/emptied/deep"),
        file("srv/emptied/deep/below", b"x"),
        folder("srv/gone"),
        file("srv/gone/below", b"x"),
        file("srv/becomes-folder", b"x"),
        folder("srv/becomes-file"),
        file("srv/becomes-file/below", b"x"),
        symlink("lib", "usr/lib"),
        folder("usr/lib"),
    )
    middle = tar(
        file("srv/.wh.removed"),
        # The mark comes after what the same layer adds, and takes nothing of it away.
        file("srv/emptied/above", b"new"),
        file("srv/emptied/.wh..wh..opq"),
        file("srv/.wh.gone"),
        folder("srv/becomes-folder"),
        file("srv/becomes-folder/in", b"in"),
        file("srv/becomes-file", b"now a file"),
        # Through a link of the layer below, within the image.
        file("lib/library", b"in usr/lib"),
        hard_link("srv/third-name", "srv/kept/one"),
        file("srv/both", b"middle"),
    )
    upper = tar(file("srv/.wh.both"), file("srv/removed", b"back again"), file("srv/.wh..wh.plnk", b"of another time"))
    image = Image(Layer(lowest), Layer(middle, "zstd"), Layer(upper), run={"Env": ["PATH=/bin"]})
    house.build("layered", {"image": registry.push("team/layered", "1", image)})
    sandbox = house.create("layered")
    yield lambda line, **rest: house.within(sandbox, line, **rest)
    house.remove(sandbox)


def test_owners_modes_and_links_are_kept(layered):
    assert layered("stat -c '%u %g %a' /srv/kept").strip() == "1234 4321 2750"
    assert layered("stat -c '%u %g %a' /srv/kept/one").strip() == "1234 4321 640"
    inodes = layered("stat -c %i /srv/kept/one /srv/kept/two /srv/third-name").split()
    assert len(set(inodes)) == 1 and layered("stat -c %h /srv/kept/one").strip() == "3"
    assert layered("readlink /srv/link; cat /srv/link") == "kept/one\n1"
    assert layered("cat /usr/lib/library; readlink /lib") == "in usr/libusr/lib\n"
    assert layered("stat -c '%a %u' /tmp /home/ada").split() == ["1777", "0", "755", "1234"]


def test_holes_stay_holes(layered):
    size, blocks = layered("stat -c '%s %b' /srv/sparse").split()
    assert int(size) == 300_000_000 and int(blocks) * 512 < 1_000_000
    assert layered("tail -c 3 /srv/sparse") == "end"


def test_what_upper_layers_take_away_is_gone_and_nothing_else(layered):
    assert layered("cat /srv/removed") == "back again"
    assert layered("ls /srv/emptied") == "above\n"
    assert layered("cat /srv/becomes-folder/in; cat /srv/becomes-file") == "innow a file"
    assert layered("ls -a /srv").split() == [
        ".", "..", "becomes-file", "becomes-folder", "emptied", "kept", "link", "removed", "sparse", "third-name",
    ]


def test_file_capabilities_work_inside(layered):
    assert layered("/bin/cat /etc/secret 2>&1 || true", user="ada").endswith("Permission denied\n")
    assert layered("/cap/cat /etc/secret", user="ada") == "root's own\n"


def test_only_an_images_own_attributes_come_in(house, layered):
    """An overlay would obey some of them, and the host others."""
    hostile = {}
    for name in ("user.overlay.opaque", "user.overlay.redirect", "trusted.overlay.opaque", "security.selinux", "user.mine"):
        hostile.update(attribute(name, b"y"))
    image = Image(Layer(tar(*busybox(), folder("srv/marked", **hostile), file("srv/marked/in", b"in"))), run={"Env": ["PATH=/bin"]})
    before = set(house.files()["layers"])
    house.take("attributes", image.layout())
    (layer,) = set(house.files()["layers"]) - before
    assert os.listxattr(house.pool / "layers" / layer / "root/srv/marked") == ["user.mine"]
    assert house.shown("attributes", "cat /srv/marked/in") == "in"


def test_a_program_with_set_user_id_gets_its_power_inside_alone(house, registry):
    """A static program that prints whose power it has: busybox's `su` refuses to work without it."""
    people = b"root::0:0:root:/root:/bin/sh\nada:x:1234:1234::/home/ada:/bin/sh\n"
    with open("/bin/busybox", "rb") as program:
        su = file("usr/bin/su", program.read(), 0o4755)
    image = Image(Layer(tar(*busybox(), folder("usr/bin"), su, file("etc/passwd", people))), run={"Env": ["PATH=/bin"]})
    house.build("su", {"image": registry.push("team/su", "1", image)})
    assert house.shown("su", "/usr/bin/su root -c 'id -u'", user="ada") == "0\n"
    # To this machine it is nobody, and its files are behind folders that only root enters.
    sandbox = house.create("su")
    house.within(sandbox, "/usr/bin/su root -c 'sleep 98765 & true'", user="ada")
    (power,) = [owner for words, owner in processes() if words == b"sleep\0" + b"98765\0"]
    assert power >= 65536
    for path in (house.data, house.pool / "layers", house.pool / "uppers"):
        assert path.stat().st_mode & 0o077 == 0, path
    house.remove(sandbox)


def processes():
    """The words of every process of this machine, and whose it is."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            yield (path / "cmdline").read_bytes(), path.stat().st_uid
        except OSError:
            continue


def test_names_in_any_bytes_are_kept(house):
    names = ["srv/größe", "srv/a b", "srv/" + "x" * 200, "srv/new\nline", "srv/quote'\"", "srv/-rf"]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in [*busybox(), *(file(name, name.encode()) for name in names)]:
            archive.addfile(info, io.BytesIO(data))
    house.take("names", content.getvalue())
    shown = house.shown("names", "cd /srv && for name in *; do printf '%s|' \"$name\"; cat -- \"$name\"; printf '\\0'; done", user="root")
    found = dict(part.split("|", 1) for part in shown.split("\0") if part)
    assert found == {name.removeprefix("srv/"): name for name in names}
