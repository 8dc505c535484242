"""Images from registries: names, platforms, compressions, credentials, other places, and connections that break."""

import hashlib
import pathlib
import random
import time

import pytest
from conftest import PEOPLE
from images import INDEX, Image, Layer, busybox, digest, file, index, tar
from registries import Breaking
from server import wait_for

ARM64 = {"os": "linux", "architecture": "arm64"}


def marked(word, how="gzip", **rest):
    """An image of its own: nothing of it was pulled before."""
    return Image(Layer(tar(*busybox()), how), Layer(tar(file("etc/mark", word.encode())), how), run={"Env": ["PATH=/bin"]}, **rest)


def test_a_name_a_tag_and_a_digest_lead_to_one_image(house, busy, busy_name):
    name = busy_name.removesuffix(":v1")
    for number, reference in enumerate([name, busy_name, f"{name}@{digest(busy.manifest)}", f"{name}:v1@{digest(busy.manifest)}"]):
        house.build(f"named-{number}", {"image": reference})
        assert house.shown(f"named-{number}", "cat /etc/greeting") == "hello\n", reference
    assert len(house.rows("SELECT digest FROM images WHERE digest = ?", digest(busy.manifest))) == 1
    for reference, word in [(f"{name}:never", "never"), (f"{name}@sha256:{'0' * 64}", "0" * 64), (f"{name}/nothing", "nothing")]:
        said = house.refused("nowhere", {"image": reference})
        assert word in said and "has none" in said, said


def test_create_makes_a_template_of_an_image_and_the_second_time_nothing_is_pulled(house, registry):
    proxy = Breaking(registry)
    try:
        registry.push("team/once", "1", marked("once"))
        name = f"{proxy.host}/team/once:1"
        first = house.cove("create", "--image", name).strip()
        fetched = len(proxy.ranges)
        assert fetched > 0
        second = house.cove("create", "--image", name).strip()
        assert len(proxy.ranges) == fetched, "a layer was fetched again"
        assert house.within(second, "cat /etc/mark") == "once"
        house.remove(first, second)
    finally:
        proxy.end()


def test_of_many_platforms_this_machines_is_taken(house, registry):
    ours, theirs = marked("ours"), marked("theirs", platform=ARM64)
    for image in (ours, theirs):
        registry.push("team/many", digest(image.manifest), image)
    unknown = {"os": "unknown", "architecture": "unknown"}
    amd64 = {"os": "linux", "architecture": "amd64"}
    entries = [theirs.described(platform=ARM64), theirs.described(platform=unknown), ours.described(platform=amd64)]
    name = registry.tag("team/many", "all", index(entries), INDEX)
    house.build("many", {"image": name})
    assert house.shown("many", "cat /etc/mark") == "ours"
    # An index that leads to an index.
    inner = index(entries)
    registry.tag("team/many", digest(inner), inner, INDEX)
    outer = index([{"mediaType": INDEX, "digest": digest(inner), "size": len(inner), "platform": amd64}])
    house.build("nested", {"image": registry.tag("team/many", "nested", outer, INDEX)})
    said = house.refused("others", {"image": registry.tag("team/many", "others", index(entries[:2]), INDEX)})
    assert "linux/amd64" in said and "linux/arm64" in said, said
    said = house.refused("lonely", {"image": registry.push("team/lonely", "1", theirs)})
    assert "linux/arm64" in said, said


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_every_compression_is_read(house, registry, how):
    house.build(f"as-{how}", {"image": registry.push(f"team/{how}", "1", marked(f"as {how}", how))})
    assert house.shown(f"as-{how}", "cat /etc/mark") == f"as {how}"


def test_a_private_registry_wants_its_own_people(house, private_registry):
    name = private_registry.push("secret/app", "1", marked("private"))
    assert "credentials" in house.refused("p0", {"image": name})
    for who in ({"username": "grace", "password": "wrong-horse"}, {"username": "eve", "password": PEOPLE["grace"]}):
        said = house.refused("p1", {"image": name}, registry=who)
        assert "credentials" in said and name in said, said
        assert who["password"] not in said
    right = {"username": "grace", "password": PEOPLE["grace"]}
    house.build("p2", {"image": name}, registry=right)
    assert house.shown("p2", "cat /etc/mark") == "private"
    # By hand, with the password where nobody sees it.
    house.cove("template", "build", "p3", "--image", name, "--registry-user", "grace", environment={"COVE_REGISTRY_PASSWORD": PEOPLE["grace"]})
    # Whoever has no right gets nothing, although the files are here.
    stranger = house.another_organisation()
    ended, _ = house.build("p4", {"image": name}, expect="error", key=stranger)
    assert "credentials" in ended["failure"]["message"]
    for path in [*house.data.glob("cove.db*"), pathlib.Path(house.log.name)]:
        assert PEOPLE["grace"].encode() not in path.read_bytes(), path


def test_the_operators_aliases_and_mirrors_decide_where_names_lead(house, registry, busy_name):
    house.build("alias", {"image": "ubuntu:v1"})
    assert house.shown("alias", "cat /etc/greeting") == "hello\n"
    # An alias can be a template of this installation.
    house.build("own", {"image": "vendor/own", "steps": [{"run": {"command": "echo built > /opt/mark"}}]})
    assert house.shown("own", "cat /opt/mark") == "built\n"
    registry.push("mirror/library/thing", "2", marked("mirrored"))
    house.build("mirror", {"image": "thing:2"})
    assert house.shown("mirror", "cat /etc/mark") == "mirrored"
    registry.push("mirror/team/thing", "2", marked("team's"))
    house.build("full-name", {"dockerfile": "FROM docker.io/team/thing:2\nRUN cat /etc/mark > /etc/copied\n"})
    assert house.shown("full-name", "cat /etc/copied") == "team's"


def test_registries_of_the_neighbourhood_are_for_whom_the_operator_says(tight, place, registry, busy_name):
    """`tight` may reach loopback; its metadata address and private networks are nobody's."""
    for host in ("169.254.169.254", "10.0.0.1:5000", "[fd00::1]:5000"):
        started = time.monotonic()
        said = tight.refused("near", {"image": f"{host}/x:1"})
        assert host.split(":")[0].strip("[]")[:4] in said and "may not be reached" in said, said
        assert time.monotonic() - started < 5, "it was tried"


def test_a_pull_goes_on_where_it_broke_off(house, registry):
    # Bytes that cannot be compressed: the layer is as large as it says.
    noise = random.Random(5).randbytes(3_000_000)
    image = Image(Layer(tar(*busybox(), file("srv/noise", noise))), run={"Env": ["PATH=/bin"]})
    registry.push("team/long", "1", image)
    proxy = Breaking(registry, after=1_000_000, times=3)
    try:
        house.build("long", {"image": f"{proxy.host}/team/long:1"})
        assert house.shown("long", "md5sum < /srv/noise") == f"{hashlib.md5(noise).hexdigest()}  -\n"
        wanted = [range for range in proxy.ranges if range]
        starts = [int(range.removeprefix("bytes=").removesuffix("-")) for range in wanted]
        assert len(starts) == 3 and starts == sorted(starts) and starts[0] > 0, proxy.ranges
    finally:
        proxy.end()


def test_a_registry_that_always_breaks_off_is_given_up(house, registry):
    image = marked("never comes")
    registry.push("team/never", "1", image)
    proxy = Breaking(registry, after=0, times=10**6)
    try:
        said = house.refused("never", {"image": f"{proxy.host}/team/never:1"})
        assert proxy.host in said, said
    finally:
        proxy.end()
    wait_for(lambda: not house.files()["spool"], 10, "an empty spool")
    assert house.is_well()
