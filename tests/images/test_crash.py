"""The server is killed in the middle of a pull, a build, a snapshot, a fork and an export, at random moments.

What was acknowledged is there afterwards. What was not is either whole or gone. How it is counted that nothing is left behind:
every directory in the pool's `layers` has a row that says `ready`, and every such row its directory; no drafts, no spooled
files, no holds of work under way, no builds or jobs that are not finished, no sandboxes of builds. At last everything is deleted
and made old: then there is no layer at all.
"""

import contextlib
import os
import random
import sqlite3
import time

import pytest
from house import House, Under, read_all
from images import Image, Layer, busybox, file, tar
from registries import Breaking
from server import wait_for

LONG = "COVE_LONG" in os.environ
ROUNDS = 25 if LONG else 3
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(scope="module")
def chance():
    seed = int(os.environ.get("COVE_SEED", time.time_ns() % 2**32))
    print(f"COVE_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def mortal(place):
    one = House(place / "mortal", 'private_targets = "127.0.0.1"\n')
    yield one
    one.leave()


@pytest.fixture(scope="module")
def slow(registry):
    """The registry, through a thin line: a pull takes a second."""
    one = Breaking(registry, slowly=0.5)
    yield one
    one.end()


@pytest.fixture(scope="module")
def ground(mortal, registry):
    """A template to begin with."""
    image = Image(Layer(tar(*busybox())), run={"Env": ["PATH=/bin"]})
    mortal.build("ground", {"image": registry.push("crash/ground", "1", image)})
    return "ground"


def rounds(mortal, chance, act, look):
    """`act` once to its end, for its time; then cut short. After each, `look` at what it gave, or at None."""
    began = time.monotonic()
    result = act("whole")
    lasts = time.monotonic() - began
    look("whole", result)
    cut = number = 0
    while cut < ROUNDS:
        under = Under(lambda word=f"cut-{number}": act(word))
        under.join(chance.uniform(0, lasts * 0.8))
        if under.is_alive():
            cut += 1
        else:
            # The first is the slowest.
            lasts *= 0.6
        mortal.kill()
        under.join(60)
        assert not under.is_alive()
        mortal.start()
        assert mortal.is_well()
        look(f"cut-{number}", under.result)
        number += 1
        assert number < ROUNDS * 6, "it is hardly ever in the middle"
    mortal.settles()


def test_a_pull_that_is_cut_short_is_taken_up_again(mortal, chance, registry, slow, ground):
    started = {}

    def act(word):
        image = Image(Layer(tar(*busybox(), file("etc/mark", word.encode()), file("srv/noise", chance.randbytes(400_000)))), run={"Env": ["PATH=/bin"]})
        registry.push("crash/pulled", word, image)
        _, started[word] = mortal.start_build(f"pulled-{word}", {"image": f"{slow.host}/crash/pulled:{word}"})
        return mortal.end_of(started[word])

    def look(word, _):
        # Its beginning was acknowledged: so it comes to its end.
        if word in started:
            assert mortal.end_of(started[word])["state"] == "ready"
            assert mortal.shown(f"pulled-{word}", "cat /etc/mark") == word

    rounds(mortal, chance, act, look)


def test_a_build_that_is_cut_short_is_taken_up_again(mortal, chance, ground):
    started = {}

    def act(word):
        steps = [f"echo {word}-{number} > /srv/{number}; sleep 0.2" for number in range(3)]
        source = {"template": ground, "steps": [{"run": {"command": step}} for step in steps]}
        _, started[word] = mortal.start_build(f"built-{word}", source)
        return mortal.end_of(started[word])

    def look(word, _):
        if word in started:
            assert mortal.end_of(started[word])["state"] == "ready", mortal.log_of(started[word])
            assert mortal.shown(f"built-{word}", "cat /srv/*").split() == [f"{word}-{number}" for number in range(3)]

    rounds(mortal, chance, act, look)


def test_a_snapshot_is_whole_or_not_there(mortal, chance, ground):
    sandbox = mortal.create(ground)
    mortal.within(sandbox, "head -c 30000000 /dev/urandom > /srv/data; md5sum < /srv/data > /srv/sum")

    def act(word):
        mortal.within(sandbox, f"echo {word} > /srv/word")
        status, told = mortal.ask("POST", f"/api/sandboxes/{sandbox}/snapshots", mortal.key, {"name": f"taken-{word}"})
        return status, told

    def look(word, result):
        # The sandbox goes on: it is not left frozen.
        mortal.within(sandbox, "true")
        status, told = mortal.status_of(f"/api/snapshots/taken-{word}")
        if result is not None:
            assert result[0] == 201 and status == 200, (result, told)
        if status == 200:
            wait_for(lambda: mortal.status_of(f"/api/snapshots/taken-{word}")[1].get("build") or gone(word), 40, f"snapshot {word} to be whole, or gone: {told}")
            if not gone(word):
                assert mortal.shown(f"taken-{word}", "cat /srv/word; md5sum < /srv/data | cmp - /srv/sum") == f"{word}\n"

    def gone(word):
        return mortal.status_of(f"/api/snapshots/taken-{word}")[0] == 404

    rounds(mortal, chance, act, look)
    mortal.remove(sandbox)


def test_forks_are_whole_or_not_there(mortal, chance, ground):
    source = mortal.create(ground, name="source")
    mortal.within(source, "echo forked > /srv/mark")

    def act(word):
        status, told = mortal.ask("POST", f"/api/sandboxes/{source}/fork", mortal.key, {"count": 4, "labels": {"round": word}})
        assert status == 200, told
        return [fork["sandbox"]["id"] for fork in told["forks"] if fork["sandbox"]]

    def look(word, forks):
        mortal.within(source, "true")
        wait_for(lambda: all(item["state"] in ("running", "failed") for item in of(word)), 40, "forks to have a state that lasts")
        there = {item["id"]: item["state"] for item in of(word)}
        assert set(forks or []) <= {fork for fork, state in there.items() if state == "running"}, (forks, there)
        for fork in there:
            assert mortal.within(fork, "cat /srv/mark") == "forked\n"
        mortal.remove(*there)

    def of(word):
        _, listed = mortal.status_of(f"/api/sandboxes?limit=100&label=round%3D{word}")
        return listed["items"]

    rounds(mortal, chance, act, look)
    mortal.remove(source)


def test_an_export_that_is_cut_short_leaves_nothing(mortal, chance, ground):
    sandbox = mortal.create(ground)
    mortal.within(sandbox, "head -c 1000000 /dev/urandom > /srv/data")
    mortal.ask("POST", f"/api/sandboxes/{sandbox}/snapshots", mortal.key, {"name": "to-export"})
    mortal.remove(sandbox)

    def act(_):
        # Read slowly, so that there is a middle.
        return read_all(mortal, "/api/snapshots/to-export/export", pause=0.02)

    def look(_, data):
        assert not mortal.files()["spool"]
        # What looks whole is whole: a stream that broke off was an error.
        assert data is None or data.endswith(bytes(1024)) and len(data) > 1_000_000

    rounds(mortal, chance, act, look)
    assert len(act("again")) > 1_000_000


def test_at_last_nothing_is_left(mortal):
    _, listed = mortal.status_of("/api/sandboxes?limit=100")
    mortal.remove(*(item["id"] for item in listed["items"]))
    for kind in ("templates", "snapshots"):
        _, listed = mortal.status_of(f"/api/{kind}")
        for item in listed if isinstance(listed, list) else listed["items"]:
            if item.get("created_at"):
                status, told = mortal.ask("DELETE", f"/api/{kind}/{item['id']}", mortal.key)
                assert status == 204, (item, told)
    wait_for(lambda: not mortal.files()["uppers"], 40, "sandboxes to be gone")
    mortal.settles()
    mortal.stop()
    # As if all of it had happened long ago: images and steps are kept for a while, and what nobody needs for ten minutes.
    with contextlib.closing(sqlite3.connect(mortal.data / "cove.db")) as database, database:
        for table in ("layers", "images", "steps", "build_files"):
            database.execute(f"UPDATE {table} SET last_used_at = last_used_at - ?", [60 * DAY_MS])
    mortal.start()
    wait_for(lambda: not mortal.files()["layers"], 60, f"layers to be gone: {mortal.rows('SELECT * FROM layers')} used by {mortal.rows('SELECT * FROM layer_uses')}")
    assert mortal.rows("SELECT COUNT(*) FROM layers") == [(0,)] and mortal.rows("SELECT COUNT(*) FROM layer_uses") == [(0,)]
