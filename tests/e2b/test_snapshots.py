"""Snapshots of sandboxes, and copies of them that run at once."""

import pytest
from conftest import name, needs_new_sdk
from e2b import Sandbox
from e2b.exceptions import SandboxNotFoundException

pytestmark = needs_new_sdk


@pytest.fixture
def snapshot(server):
    """Takes snapshots and deletes them after the test."""
    taken = []

    def take(sandbox, **options):
        made = sandbox.create_snapshot(**options)
        taken.append(made.snapshot_id)
        return made

    yield take
    for each in taken:
        Sandbox.delete_snapshot(each)


def listed(**filters):
    found, paginator = [], Sandbox.list_snapshots(**filters)
    while paginator.has_next:
        found += [one.snapshot_id for one in paginator.next_items()]
    return found


def test_a_sandbox_starts_with_the_files_of_a_snapshot(create, sandbox, snapshot):
    sandbox.files.write("/home/user/app/config.json", "{}")
    sandbox.commands.run("sudo sh -c 'echo system > /etc/mine'; rm -f /home/user/.bashrc")
    made = snapshot(sandbox)
    # It goes on, and what it does later is not in it.
    sandbox.files.write("/home/user/later", "x")
    one, other = create(made.snapshot_id), create(made.snapshot_id)
    for box in (one, other):
        assert box.files.read("/home/user/app/config.json") == "{}"
        assert box.files.read("/etc/mine") == "system\n"
        assert not box.files.exists("/home/user/later") and not box.files.exists("/home/user/.bashrc")
        assert box.commands.run("echo $E2B_SANDBOX_ID").stdout == f"{box.sandbox_id}\n"
    one.files.write("/home/user/app/config.json", "changed")
    assert other.files.read("/home/user/app/config.json") == "{}"
    assert sandbox.is_running()


def test_a_snapshot_outlives_its_sandbox_and_sandboxes_outlive_it(create, snapshot):
    source = create()
    source.files.write("/home/user/a", "kept")
    made = snapshot(source)
    source.kill()
    box = create(made.snapshot_id)
    assert Sandbox.delete_snapshot(made.snapshot_id) is True
    assert box.files.read("/home/user/a") == "kept"
    assert box.pause() and Sandbox.connect(box.sandbox_id).files.read("/home/user/a") == "kept"
    with pytest.raises(Exception, match="not found"):
        Sandbox.create(made.snapshot_id)
    assert Sandbox.delete_snapshot(made.snapshot_id) is False


def test_snapshots_are_listed_by_sandbox_and_by_name(create, sandbox, snapshot):
    called = name("snap")
    unnamed, named = snapshot(sandbox), snapshot(sandbox, name=called)
    assert unnamed.names == [] and unnamed.snapshot_id.endswith(":default")
    assert named.snapshot_id == f"default/{called}:default" and named.names == [named.snapshot_id]
    assert {unnamed.snapshot_id, named.snapshot_id} <= set(listed())
    assert listed(sandbox_id=sandbox.sandbox_id) == [named.snapshot_id, unnamed.snapshot_id]
    assert listed(sandbox_id=sandbox.sandbox_id, limit=1) == [named.snapshot_id, unnamed.snapshot_id]
    assert listed(name=called) == [named.snapshot_id]
    assert listed(name=f"{called}-nobody") == [] and listed(sandbox_id=create().sandbox_id) == []


def test_the_same_name_is_another_build_of_the_same_snapshot(create, sandbox, snapshot):
    called = name("again")
    sandbox.files.write("/home/user/v", "1")
    snapshot(sandbox, name=f"{called}:one")
    sandbox.files.write("/home/user/v", "2")
    snapshot(sandbox, name=f"{called}:two")
    assert create(f"{called}:one").files.read("/home/user/v") == "1"
    assert create(f"default/{called}:two").files.read("/home/user/v") == "2"
    # One of them goes, the other stays.
    assert Sandbox.delete_snapshot(f"{called}:one") is True
    assert listed(name=called) == [f"default/{called}:two"]
    assert create(f"{called}:two").files.read("/home/user/v") == "2"


def test_a_snapshot_of_a_snapshot_survives_its_parent(create, sandbox, snapshot):
    sandbox.files.write("/home/user/a", "first")
    first = snapshot(sandbox)
    middle = create(first.snapshot_id)
    middle.files.write("/home/user/b", "second")
    second = snapshot(middle)
    assert Sandbox.delete_snapshot(first.snapshot_id) is True
    box = create(second.snapshot_id)
    assert (box.files.read("/home/user/a"), box.files.read("/home/user/b")) == ("first", "second")


def test_another_organisations_snapshot_is_not_there(server, sandbox, snapshot, stranger):
    made = snapshot(sandbox, name=name("mine"))
    assert Sandbox.delete_snapshot(made.snapshot_id, api_key=stranger) is False
    with pytest.raises(Exception, match="not found"):
        Sandbox.create(made.snapshot_id, api_key=stranger)
    assert listed(api_key=stranger) == [] and made.snapshot_id in listed()
    status, told = server.ask("POST", f"/e2b/sandboxes/{sandbox.sandbox_id}/snapshots", server.key, {"nmae": "x"})
    assert status == 400 and "did you mean `name`?" in told["message"]


def test_a_copy_runs_beside_its_source(create, sandbox):
    sandbox.files.write("/home/user/state", "before")
    (copy,) = sandbox.fork(timeout=60)
    try:
        assert copy.sandbox_id != sandbox.sandbox_id and copy.is_running() and sandbox.is_running()
        assert copy.files.read("/home/user/state") == "before"
        copy.files.write("/home/user/state", "of the copy")
        assert sandbox.files.read("/home/user/state") == "before"
        own = copy.commands.run("echo $E2B_SANDBOX_ID; cat /run/e2b/.E2B_SANDBOX_ID").stdout.split()
        assert own == [copy.sandbox_id] * 2
        # Each has its own right: the source's token opens no copy.
        assert copy._envd_access_token != sandbox._envd_access_token
    finally:
        copy.kill()


@pytest.mark.timeout(240)
def test_many_copies_at_once_and_their_source_keeps_its_processes(sandbox):
    counting = sandbox.commands.run("i=0; while sleep 0.1; do i=$((i+1)); echo $i > /tmp/count; done", background=True)
    copies = sandbox.fork(count=8, timeout=60)
    try:
        assert all(isinstance(copy, Sandbox) for copy in copies), copies
        assert len({copy.sandbox_id for copy in copies} | {sandbox.sandbox_id}) == 9
        before = int(sandbox.files.read("/tmp/count"))
        sandbox.commands.run("sleep 1")
        assert int(sandbox.files.read("/tmp/count")) > before
        # Files are copied, processes are not.
        assert all("while sleep" not in copy.commands.run("ps -eo args").stdout.replace("ps -eo args", "") for copy in copies[:2])
    finally:
        for copy in copies:
            copy.kill()
        counting.kill()


def test_a_copy_of_a_copy(sandbox):
    sandbox.files.write("/home/user/a", "1")
    (child,) = sandbox.fork(timeout=60)
    try:
        child.files.write("/home/user/b", "2")
        (grandchild,) = child.fork(timeout=60)
        try:
            child.kill()
            assert grandchild.files.read("/home/user/a") + grandchild.files.read("/home/user/b") == "12"
        finally:
            grandchild.kill()
    finally:
        child.kill()


def test_what_cannot_be_copied_says_why(server, create):
    sandbox = create()
    sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.fork()
    alive = create()
    fork = lambda body: server.ask("POST", f"/e2b/sandboxes/{alive.sandbox_id}/fork", server.key, body)
    for body in ({"count": 0}, {"count": 101}, {"count": -1}, {"timeout": 0}, {"cuont": 1}):
        assert fork(body)[0] == 400, body
