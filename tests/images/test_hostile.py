"""Images of a stranger who means harm: each is refused with the reason, and nothing is left of it, inside or outside."""

import gzip
import io
import os
import re
import tarfile
import time

import pytest
from house import House
from images import CONFIG, INDEX, LAYER, MANIFEST, Image, Layer, attribute, busybox, digest, encoded, file, folder, folders, hard_link, index, layout, other, symlink, tar, zstd
from registries import endless
from server import wait_for

LONG = "COVE_LONG" in os.environ


@pytest.fixture(scope="module")
def outside(place):
    """A folder of this machine that images try to reach; it stays as it is."""
    folder_ = place / "outside"
    folder_.mkdir()
    (folder_ / "file").write_text("untouched")
    return folder_


@pytest.fixture
def watched(tight, outside):
    """Whatever a test sends: afterwards the server is as it was."""
    wait_for(lambda: not (tight.files()["drafts"] or tight.files()["uppers"]), 20, "an idle server")
    before = tight.files()
    tight.forget_peak()
    memory = tight.peak()
    yield tight
    wait_for(lambda: tight.files() == before, 10, f"only {before} on the disk")
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"file": "untouched"}
    assert tight.is_well()
    assert tight.peak() - memory < 80, f"{memory} MiB before, {tight.peak()} MiB at most"


def refusal(house, data, name="hostile"):
    """Why an archive was refused; it must be."""
    status, told = house.import_archive(name, data)
    if status != 202:
        assert 400 <= status < 500, (status, told)
        return str(told)
    ended = house.end_of(told, 120)
    assert ended["state"] == "error", ended
    assert "internal" not in ended["failure"]["message"], ended
    return ended["failure"]["message"]


def image(*entries, **rest):
    return Image(Layer(tar(*folders(), *entries)), **rest).layout()


def named(name):
    """A header with a name that tarfile would not write as it is."""
    return file("x", b"x", **{"path": name})


ENTRIES = {
    "upwards": ([file("../outside/new", b"x")], r"\.\./outside/new.*upwards"),
    "upwards-inside": ([file("srv/../../outside/new", b"x")], r"upwards"),
    "upwards-folder": ([folder("srv/../../../outside/new")], r"upwards"),
    "upwards-link": ([symlink("srv/../../outside/new", "x")], r"upwards"),
    "through-a-link": ([symlink("srv/out", "OUTSIDE"), file("srv/out/new", b"x")], r"srv/out/new.*link"),
    "through-a-relative-link": ([symlink("srv/out", "../" * 40 + "OUTSIDE"), file("srv/out/new", b"x")], r"srv/out/new.*link"),
    "through-two-links": ([symlink("srv/a", "b"), symlink("srv/b", "OUTSIDE"), file("srv/a/new", b"x")], r"srv/a/new"),
    "folder-through-a-link": ([symlink("srv/out", "OUTSIDE"), folder("srv/out/new")], r"srv/out/new"),
    "hard-link-out": ([hard_link("srv/shadow", "/etc/shadow")], r"srv/shadow.*leads to nothing"),
    "hard-link-up": ([hard_link("srv/shadow", "../../../../etc/shadow")], r"srv/shadow.*upwards"),
    "hard-link-through-a-link": ([symlink("srv/out", "OUTSIDE"), hard_link("srv/new", "srv/out/file")], r"srv/new.*leads to nothing"),
    "hard-link-to-a-folder": ([hard_link("srv/new", "home")], r"srv/new.*directory"),
    "links-in-a-circle": ([symlink("srv/a", "b"), symlink("srv/b", "a"), file("srv/a/x", b"x")], r"srv/a/x.*circle"),
    "root-as-a-file": ([file("./", b"x")], r"root"),
    "root-as-a-link": ([symlink(".", "OUTSIDE")], r"root"),
    "whiteout-of-the-folder-above": ([file("srv/.wh...")], r"whiteout"),
    "whiteout-of-nothing": ([file("srv/.wh.")], r"whiteout"),
    "whiteout-of-itself": ([file("srv/.wh..")], r"whiteout"),
    "whiteout-that-climbs": ([file("../outside/.wh.file")], r"upwards"),
    "in-a-whiteout": ([file("srv/.wh.x/y", b"x")], r"whiteout"),
    "long-name": ([file("srv/" + "x" * 300, b"x")], r"longer than 255"),
    "long-path": ([file("/".join(["x" * 100] * 60), b"x")], r"too long"),
    "deep": ([file("/".join("x" * 400), b"x")], r"too deep"),
    "many-attributes": ([file("srv/x", b"x", **{k: v for n in range(100) for k, v in attribute(f"user.{n}", b"y" * 60000).items()})], r"(?i)records|large|more than"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_entries_that_lead_elsewhere(watched, outside, case):
    entries, words = ENTRIES[case]
    where = str(outside)
    for info, _ in entries:
        info.linkname = info.linkname.replace("OUTSIDE", where.lstrip("/") if info.linkname.startswith("../") else where)
    said = refusal(watched, image(*entries))
    assert re.search(words, said), said


def test_what_only_looks_dangerous_stays_inside(house, outside):
    """Absolute names, links over links, devices: all of it is the image's own affair."""
    entries = [
        file("/srv/absolute", b"inside"),
        symlink("srv/over", str(outside / "file")),
        file("srv/over", b"replaced the link"),
        symlink("srv/link", str(outside / "file")),
        hard_link("srv/link-to-link", "srv/link"),
        file("srv/link-to-link", b"replaced it, too"),
        symlink("srv/elsewhere", "/home"),
        file("srv/elsewhere/through", b"in home"),
        other(tarfile.CHRTYPE, "srv/device"),
        other(tarfile.BLKTYPE, "srv/disk"),
        other(tarfile.FIFOTYPE, "srv/pipe"),
        file("srv/below", b"x"),
        other(tarfile.CHRTYPE, "srv/below"),
    ]
    house.take("odd-looking", Image(Layer(tar(*busybox(), *entries))).layout())
    shown = house.shown("odd-looking", "cat /srv/absolute /srv/over /srv/link-to-link /home/through; readlink /srv/link; ls /srv")
    assert shown == f"insidereplaced the linkreplaced it, tooin home{outside}/file\nabsolute\nelsewhere\nlink\nlink-to-link\nover\npipe\n", shown
    assert (outside / "file").read_text() == "untouched"


def without_etc(*entries):
    """A system whose /etc is something else."""
    return Image(Layer(tar(*(entry for entry in busybox() if not entry[0].name.startswith("etc")), *entries)), run={"Env": ["PATH=/bin"]}).layout()


def test_a_system_folder_that_is_a_link_is_made_where_it_leads(house, outside):
    for number, target in enumerate(["/nowhere", "not/there", "/srv/../conf", "../../../conf", str(outside)]):
        house.take(f"linked-{number}", without_etc(symlink("etc", target)))
        assert house.shown(f"linked-{number}", "cat /etc/hosts; readlink /etc").endswith(f"{target}\n")
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_an_image_that_no_sandbox_can_be_made_of_is_refused(house):
    wrong = [file("etc", b"a file"), symlink("etc", "etc"), symlink("etc", "bin/busybox"), file("etc/hosts/full", b"x"), symlink("etc", "a/" * 400)]
    for number, entry in enumerate(wrong):
        house.take(f"unfit-{number}", without_etc(entry))
        before = house.files()["uppers"]
        status, told = house.ask("POST", "/api/sandboxes", house.key, {"template": f"unfit-{number}"})
        assert status == 400 and "/etc" in str(told), (number, status, told)
        assert "/etc" in house.refused(f"on-unfit-{number}", {"dockerfile": f"FROM unfit-{number}\nRUN true\n"})
        wait_for(lambda: house.files()["uppers"] == before, 10, "nothing of it on the disk")


def test_whiteouts_through_links_remove_nothing_outside(house, outside):
    layers = [Layer(tar(*busybox(), symlink("srv/out", str(outside)))), Layer(tar(file("srv/out/.wh.file"), file("srv/out/.wh..wh..opq")))]
    house.take("whiteouts", Image(*layers).layout())
    assert (outside / "file").read_text() == "untouched"


def claimed(name, size):
    """A header that says so many bytes follow, and nothing does."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def nothing(size):
    """A tar with one file of zeros, without having it in memory; packed by gzip."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=0) as packed:
        info = tarfile.TarInfo("srv/zeros")
        info.size = size
        packed.write(info.tobuf())
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))
        packed.write(bytes(1024))
    return out.getvalue()


def as_layer(sent, diff_id=None, how="gzip"):
    """Bytes that were packed elsewhere; what they unpack to is anybody's guess."""
    layer = Layer(b"", "plain")
    layer.sent, layer.how, layer.diff_id = sent, how, diff_id or digest(b"unpacked" + sent)
    return layer


def many_entries(count):
    """Empty files with numbers for names; the sum of each header is counted from the first's."""
    header = bytearray(tarfile.TarInfo("00000000").tobuf())
    first = int(header[148:154], 8)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed:
        for number in range(count):
            name = b"%08d" % number
            header[0:8], header[148:154] = name, b"%06o" % (first + sum(name) - 8 * 48)
            packed.write(header)
        packed.write(bytes(1024))
    return out.getvalue()


def holes(size):
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "srv/holes", "GNU.sparse.realsize": str(size)}
    return file("srv/x", b"0\n".ljust(512, b"\0"), **records)


def wide_window():
    """A frame that asks for a window of 2 GiB."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"\x01\x00\x00"


BOMBS = {
    "gzip": (lambda: Image(as_layer(nothing(200 << 20))).layout(), r"larger than \d+ bytes"),
    "zstd": (lambda: Image(as_layer(zstd(tar(file("srv/zeros", bytes(120 << 20)))), how="zstd")).layout(), r"larger than \d+ bytes"),
    "zstd-window": (lambda: Image(as_layer(wide_window(), how="zstd")).layout(), r"(?i)memory"),
    "whole-archive": (lambda: nothing(200 << 20), r"larger than \d+ bytes"),
    "holes": (lambda: image(holes(1 << 40)), r"larger than \d+ bytes"),
    "claims-a-terabyte": (lambda: Image(Layer(claimed("srv/x", 1 << 40))).layout(), r"larger than \d+ bytes|ends in the middle"),
    "claims-more-than-there-is": (lambda: Image(Layer(claimed("srv/x", 5 << 20))).layout(), r"ends in the middle"),
    "claims-in-records": (lambda: image(file("srv/x", b"x", size=str((1 << 63) - 1))), r"larger|middle"),
    "many-entries": (lambda: Image(as_layer(many_entries(1_000_000 if LONG else 150_000))).layout(), r"larger than \d+ bytes|entries|took longer|too long"),
    "not-a-tar": (lambda: Image(Layer(b"nonsense" * 500)).layout(), r"(?i)cannot be read|unpack"),
    "cut-gzip": (lambda: Image(as_layer(gzip.compress(tar(*busybox()))[:-500])).layout(), r"(?i)unpack|end"),
    "bzip2": (lambda: Image(as_layer(b"BZh91AY&SY" + bytes(100))).layout(), r"bzip2"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_stopped_while_they_go_off(watched, case):
    make, words = BOMBS[case]
    said = refusal(watched, make())
    assert re.search(words, said), said


def described(data, kind):
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def with_config(config):
    """A layout whose image has this config."""
    layer = Layer(tar(*folders()))
    manifest = encoded({"schemaVersion": 2, "config": described(config, CONFIG), "layers": [layer.described()]})
    return layout([described(manifest, MANIFEST)], {digest(data): data for data in (config, layer.sent, manifest)})


def nested(depth):
    """Indexes that lead to indexes."""
    inner = Image(Layer(tar(*folders())))
    blobs = {digest(inner.manifest): inner.manifest, **inner.blobs}
    entry = inner.described()
    for _ in range(depth):
        document = index([entry])
        blobs[digest(document)] = document
        entry = described(document, INDEX)
    return layout([entry], blobs)


def changed_blob(which):
    """An image of which one blob is not what it is called."""
    one = Image(Layer(tar(*folders())))
    blobs = {digest(one.manifest): one.manifest, **one.blobs}
    name = {"manifest": digest(one.manifest), "config": digest(one.config), "layer": digest(one.layers[0].sent)}[which]
    data = bytearray(blobs[name])
    data[len(data) // 2] ^= 1
    return layout([one.described()], {**blobs, name: bytes(data)})


def many_layers(count):
    layer = Layer(tar(file("srv/x", b"x")))
    one = Image(*[layer] * count)
    return one.layout()


def foreign():
    layer = Layer(tar(*folders()))
    one = Image(layer)
    manifest = encoded({"schemaVersion": 2, "config": described(one.config, CONFIG), "layers": [{**layer.described(), "urls": ["http://169.254.169.254/"]}]})
    return layout([described(manifest, MANIFEST)], {digest(manifest): manifest, **one.blobs})


def deep_config():
    return with_config(b'{"architecture":"amd64","os":"linux","config":{"Env":' + b"[" * 200_000 + b"]" * 200_000 + b"}}")


LIES = {
    "other-manifest": (lambda: changed_blob("manifest"), r"sha256:[0-9a-f]{64}"),
    "other-config": (lambda: changed_blob("config"), r"sha256:[0-9a-f]{64}"),
    "other-layer": (lambda: changed_blob("layer"), r"(?i)unpack|content|sha256"),
    "other-diff-id": (lambda: Image(Layer(tar(*folders())), diff_ids=["sha256:" + "2" * 64]).layout(), r"its image says sha256:2{64}"),
    "more-layers-than-config": (lambda: Image(Layer(tar(*folders())), diff_ids=["sha256:" + "2" * 64] * 2).layout(), r"1 layers, its config 2"),
    "too-many-layers": (lambda: many_layers(600), r"600 layers"),
    "indexes-without-end": (lambda: nested(8), r"indexes lead to more indexes"),
    "huge-config": (lambda: with_config(b'{"x":"' + b"y" * (5 << 20) + b'"}'), r"4 MiB"),
    "deep-config": (deep_config, r"(?i)recursion|config cannot be read"),
    "config-is-a-list": (lambda: with_config(b"[1,2]"), r"no JSON object"),
    "config-of-other-words": (lambda: with_config(b'{"rootfs":{"type":"layers","diff_ids":["../../etc"]}}'), r"config cannot be read"),
    "elsewhere": (foreign, r"urls"),
    "missing-blob": (lambda: layout([Image(Layer(tar(*folders()))).described()], {}), r"missing"),
    "saved-with-a-path": (lambda: tar(file("manifest.json", encoded([{"Config": "../../../../etc/passwd", "Layers": []}]))), r"missing"),
    "saved-with-a-link": (
        lambda: tar(symlink("c.json", "/etc/passwd"), file("manifest.json", encoded([{"Config": "c.json", "Layers": []}]))),
        r"missing",
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_what_an_archive_says_is_compared(watched, case):
    make, words = LIES[case]
    said = refusal(watched, make())
    assert re.search(words, said), said


def test_names_with_zeros_and_lines_are_refused_or_kept_as_they_are(watched):
    said = refusal(watched, image(named("srv/x\0../../outside/new")))
    assert "zero byte" in said or "record" in said, said


def test_a_registry_that_lies_gets_nowhere(watched, liar):
    def fresh(word):
        """An image that was never tried: what one that failed leaves must not be what ends the next."""
        return Image(Layer(tar(*folders(), file("srv/word", word.encode()))))

    def said(word, instead=None, of="layer", **rest):
        one = fresh(word)
        data = one.layers[0].sent if of == "layer" else one.config
        changed = {} if instead is None else {digest(data): instead if instead is endless else instead(data)}
        return watched.refused("liar", {"image": liar.put("x/liar", word, one, **rest, **changed)})

    assert "another content" in said("content", lambda data: bytes([data[0] ^ 1]) + data[1:])
    assert re.search(r"the manifest says|bytes", said("short", lambda data: data[:-7]))
    assert re.search(r"the manifest says|bytes", said("long", lambda data: data + b"more"))
    assert re.search(r"larger|bytes", said("endless", endless))
    # The config is another than the manifest says.
    assert "another content" in said("config", lambda data: data.replace(b"linux", b"LINUX"), "config")
    # Manifests: endless, and another than the tag's digest.
    liar.said["/v2/x/liar/manifests/endless-manifest"] = endless
    assert re.search(r"(?i)more than|bytes|answer", watched.refused("liar", {"image": f"{liar.host}/x/liar:endless-manifest"}))
    one = fresh("moved")
    name = liar.put("x/liar", "moved", one)
    liar.said[f"/v2/x/liar/manifests/{digest(one.manifest)}"] = fresh("another").manifest
    assert "content" in watched.refused("liar", {"image": name})
    # A layer that says it has a terabyte is not begun with.
    one = fresh("terabyte")
    large = encoded({"schemaVersion": 2, "config": described(one.config, CONFIG), "layers": [{**one.layers[0].described(), "size": 1 << 40}]})
    assert re.search(r"bytes|MiB", said("terabyte", manifest=large))
    # Schema 1 has no digests.
    assert "schema 1" in said("old", manifest=encoded({"schemaVersion": 1, "fsLayers": []}))


def test_a_pull_that_failed_can_be_tried_again_at_once(tight, liar):
    started = time.monotonic()
    for number in range(4):
        one = Image(Layer(tar(file("srv/again", b"%d" % number))))
        (layer,) = one.layers
        name = liar.put("x/again", str(number), one, **{digest(layer.sent): bytes(len(layer.sent))})
        assert "another content" in tight.refused("again", {"image": name})
        liar.put("x/again", str(number), one)
        tight.build("again", {"image": name})
    assert time.monotonic() - started < 40, "it waited for what a failed attempt left"


def test_a_build_that_was_cancelled_unpacks_nothing_any_more(house):
    """Whatever a stranger's layer still has in store: the time of a build bounds its unpacking, too."""
    status, build = house.import_archive("many", Image(as_layer(many_entries(400_000))).layout())
    assert status == 202, build
    wait_for(lambda: house.files()["drafts"], 60, "the unpacking to begin")
    assert house.ask("POST", f"{build}/cancel", house.key)[1]["state"] == "cancelled"
    wait_for(lambda: not house.files()["drafts"] and not house.files()["spool"], 8, "the draft to be gone")
    # Nobody goes on behind it: a second later the server has nothing to do.
    wait_for(lambda: house.is_idle(), 8, "an idle processor")


def test_a_registry_that_sends_elsewhere_gets_nowhere(watched, liar):
    """Redirects and token realms lead to places that tenants may not reach."""
    reached = []

    def fresh(word):
        one = Image(Layer(tar(*folders(), file("srv/sends", word.encode()))))
        return one, digest(one.layers[0].sent)

    def sent_to(place):
        def answer(handler):
            reached.append(place)
            handler.send_response(307)
            handler.send_header("Location", place)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        return answer

    for place in ("http://169.254.169.254/latest/meta-data/", "https://10.0.0.1/x", "file:///etc/passwd", "http://[::ffff:169.254.169.254]/"):
        one, blob = fresh(place)
        said = watched.refused("sends", {"image": liar.put("x/sends", digest(place.encode())[7:19], one, **{blob: sent_to(place)})})
        assert re.search(r"may not be reached|not https|no URL", said), (place, said)
    one, blob = fresh("round")
    reached.clear()
    name = liar.put("x/sends", "round", one, **{blob: sent_to(f"http://{liar.host}/v2/x/sends/blobs/{blob}")})
    assert "sent on" in watched.refused("sends", {"image": name})
    assert len(reached) < 100, "it went round and round"

    def realm(handler):
        handler.send_response(401)
        handler.send_header("WWW-Authenticate", 'Bearer realm="http://169.254.169.254/token",service="x"')
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    liar.said["/v2/x/realm/manifests/1"] = realm
    assert re.search(r"may not be reached|not https", watched.refused("realm", {"image": f"{liar.host}/x/realm:1"}))


def test_what_a_name_may_be(watched, liar):
    for name in ("../../etc/passwd", "x/../y:1", f"{liar.host}/x%2f..:1", f"{liar.host}/X:1", "a b", f"{liar.host}/x:1\nHost: y", f"{liar.host}/x@sha256:short", ":", "/", "@", "x" * 5000):
        status, told = watched.ask("POST", "/api/templates", watched.key, {"name": "name", "from": {"image": name}})
        if status == 202:
            ended = watched.end_of(f"/api/templates/{told['template']['id']}/builds/{told['build']['id']}")
            assert ended["state"] == "error", (name, ended)
        else:
            assert status in (400, 422), (name, status, told)
    assert not [path for path in liar.asked if ".." in path or "Host" in path]


def test_knowing_what_an_image_is_called_is_not_having_it(house, private_registry, liar):
    """Digests are in logs and in `docker inspect`. Whoever shows them, and not the files, gets nothing of another's image."""
    mine = Image(Layer(tar(*busybox(), file("srv/private", b"of another organisation"))), run={"Env": ["PATH=/bin"]})
    name = private_registry.push("secret/mine", "1", mine)
    house.build("mine", {"image": name}, registry={"username": "grace", "password": private_registry.people["grace"]})
    stranger = house.another_organisation()
    # The same names of unpacked layers, and other files.
    false = Image(as_layer(gzip.compress(tar(file("srv/x", b"x"))), mine.layers[0].diff_id))
    # The manifest and the config as they are, and a layer of the right length.
    blobs = {digest(mine.manifest): mine.manifest, **{key: data if data == mine.config else bytes(len(data)) for key, data in mine.blobs.items()}}
    stolen = []
    for number, data in enumerate([false.layout(), layout([mine.described()], blobs)]):
        status, told = house.import_archive(f"stolen-{number}", data, key=stranger)
        assert status == 202, told
        stolen.append(house.end_of(told, key=stranger)["state"])
    # A registry of the stranger's own, which has the manifest and the config and no layer.
    nothing_more = {digest(layer.sent): None for layer in mine.layers}
    _, build = house.start_build("stolen-2", {"image": liar.put("x/stolen", "1", mine, **nothing_more)}, stranger)
    stolen.append(house.end_of(build, key=stranger)["state"])
    assert stolen == ["error"] * 3, "a stranger has the image"


def archives(house):
    """How many there are, on the disk and as rows that count for the organisation."""
    (rows,) = house.rows("SELECT COUNT(*) FROM build_files")[0]
    return rows, sum(len(files) for _, _, files in os.walk(house.data / "archive/build-files"))


def test_archives_are_not_kept_when_they_were_read(house):
    before = archives(house)
    house.take("read", tar(*busybox(), file("srv/read", b"x")))
    refusal(house, image(file("../x", b"x")))
    wait_for(lambda: archives(house) == before, 10, "archives that nobody can name to be gone")


def test_archives_go_with_a_build_that_is_cancelled_or_that_its_server_did_not_survive(place):
    """Builds have one turn here: the second waits, and has read nothing of its archive yet."""
    house = House(place / "spent", "[builds]\nat_once = 1\n")
    try:
        before = archives(house)
        long = Image(as_layer(many_entries(400_000))).layout()
        (_, first), (_, second) = house.import_archive("first", long), house.import_archive("second", long)
        assert archives(house)[0] == before[0] + 2
        for build in (second, first):
            assert house.ask("POST", f"{build}/cancel", house.key)[1]["state"] == "cancelled"
        wait_for(lambda: archives(house) == before, 10, "both archives to be gone")
        # Taken up again, it finds its archive, which then goes.
        _, third = house.import_archive("third", tar(*busybox()))
        house.kill()
        house.start()
        assert house.end_of(third)["state"] == "ready"
        wait_for(lambda: archives(house) == before, 50, "what the next server read to be gone")
    finally:
        house.leave()


FILES = {
    "upwards": [file("../../srv/new", b"x")],
    "absolute": [file("/srv/absolute", b"x")],
    "through-a-link": [symlink("out", "/srv"), file("out/new", b"x")],
    "hard-link-out": [hard_link("shadow", "/etc/shadow")],
    "device": [other(tarfile.CHRTYPE, "device")],
    "bomb": [file("zeros", bytes(1 << 20))] * 100,
}


@pytest.mark.parametrize("case", FILES)
def test_files_for_copy_stay_where_copy_puts_them(tight, busy_name, case):
    data = gzip.compress(tar(*FILES[case]), 1)
    name = digest(data).removeprefix("sha256:")
    status, told = tight.ask("POST", f"/api/build-files/{name}", tight.key, data, {"Content-Type": "application/x-tar"})
    assert status == 201, (status, told)
    text = f"FROM {busy_name}\nRUN mkdir /in\nCOPY . /in/\nRUN ls -d /srv/* /in/etc/shadow 2>/dev/null && exit 9; ls -l /in; test ! -c /in/device\n"
    _, build = tight.start_build("copied", {"dockerfile": text, "files": [name]}, force=True)
    ended = tight.end_of(build)
    assert ended["state"] == "ready" or "exit status 9" not in ended["failure"]["message"], tight.log_of(build)
    if case == "bomb":
        assert ended["state"] == "error", ended


def test_nothing_of_them_is_left_in_the_database(tight):
    """Rows of layers that were given up go with the next round of upkeep."""
    tight.settles()
    assert tight.is_well()
