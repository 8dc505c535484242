"""The life of a sandbox through the synchronous Python SDK."""

import datetime
import json
import uuid

import pytest
from conftest import needs_new_sdk, wait_for
from e2b import NotFoundException, Sandbox, SandboxException, SandboxQuery, SandboxState


def test_a_sandbox_runs_and_is_gone_after_a_kill(create):
    sandbox = create()
    assert sandbox.is_running()
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False
    with pytest.raises(NotFoundException):
        Sandbox.get_info(sandbox.sandbox_id)


def test_what_was_asked_for_is_told_again(create):
    sandbox = create(metadata={"a": "b c", "ř": "&="}, envs={"COLOUR": "blue"}, timeout=120)
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.metadata == {"a": "b c", "ř": "&="}
    assert info.state == SandboxState.RUNNING
    assert 100 < (info.end_at - info.started_at).total_seconds() <= 121
    assert sandbox.commands.run("echo $COLOUR $E2B_SANDBOX $E2B_SANDBOX_ID").stdout == f"blue true {sandbox.sandbox_id}\n"


def test_lists_are_filtered_by_metadata_and_come_in_pages(create):
    mark = uuid.uuid4().hex
    ids = [create(metadata={"mark": mark, "odd": "ř & ="}).sandbox_id for _ in range(3)]
    query = SandboxQuery(metadata={"mark": mark, "odd": "ř & ="})
    pages = Sandbox.list(query=query, limit=2)
    first = pages.next_items()
    assert pages.has_next
    second = pages.next_items()
    assert not pages.has_next
    assert [each.sandbox_id for each in first + second] == ids[::-1]
    assert Sandbox.list(query=SandboxQuery(metadata={"mark": mark, "odd": "no"})).next_items() == []


def test_a_list_by_state_knows_who_sleeps(create):
    mark = uuid.uuid4().hex
    awake, asleep = create(metadata={"mark": mark}), create(metadata={"mark": mark})
    asleep.pause() if hasattr(asleep, "pause") else asleep.beta_pause()
    for state, wanted in [(SandboxState.RUNNING, awake), (SandboxState.PAUSED, asleep)]:
        found = Sandbox.list(query=SandboxQuery(metadata={"mark": mark}, state=[state])).next_items()
        assert [each.sandbox_id for each in found] == [wanted.sandbox_id]


def test_a_deadline_ends_the_sandbox_and_can_be_moved(create):
    sandbox = create()
    sandbox.set_timeout(100)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)
    assert 90 < left.total_seconds() <= 101
    sandbox.set_timeout(1)
    wait_for(lambda: not sandbox.is_running(), 10, "the end of the sandbox")


def test_connect_gives_more_time_never_less(create):
    sandbox = create(timeout=300)
    before = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert sandbox.get_info().end_at == before
    other = Sandbox.connect(sandbox.sandbox_id, timeout=900)
    assert sandbox.get_info().end_at > before
    assert other.commands.run("echo same").stdout == "same\n"


def test_connect_to_nobody_is_told(server):
    with pytest.raises(NotFoundException):
        Sandbox.connect("aaaaaaaaaaaaaaaaaaaa")
    with pytest.raises(NotFoundException):
        Sandbox.connect("no-such-id")


@needs_new_sdk
def test_a_pause_keeps_files_and_processes(sandbox):
    counter = sandbox.commands.run("i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done", background=True)
    wait_for(lambda: sandbox.files.exists("/tmp/count"))
    assert sandbox.pause() is True
    assert sandbox.is_running() is False
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert sandbox.pause() is False
    sandbox.connect(timeout=60)
    before = int(sandbox.files.read("/tmp/count") or 0)
    wait_for(lambda: int(sandbox.files.read("/tmp/count") or 0) > before, 10, "the loop to go on")
    assert counter.pid in [process.pid for process in sandbox.commands.list()]


@needs_new_sdk
def test_a_pause_without_memory_keeps_files_alone(sandbox):
    sandbox.files.write("kept.txt", "kept")
    sandbox.commands.run("sleep 100", background=True)
    sandbox.pause(mode="filesystem")
    sandbox.connect(timeout=60)
    assert sandbox.files.read("kept.txt") == "kept"
    assert sandbox.commands.list() == []


@needs_new_sdk
def test_a_sandbox_that_sleeps_at_its_deadline_wakes_for_a_call(create):
    sandbox = create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.set_timeout(0)
    wait_for(lambda: sandbox.get_info().state == SandboxState.PAUSED, 10, "the pause")
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    assert sandbox.get_info().state == SandboxState.RUNNING


@needs_new_sdk
def test_a_sandbox_that_must_not_wake_by_itself_does_not(create):
    sandbox = create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": False})
    sandbox.set_timeout(0)
    wait_for(lambda: sandbox.get_info().state == SandboxState.PAUSED, 10, "the pause")
    with pytest.raises(SandboxException, match="sandbox was not found"):
        sandbox.commands.run("echo awake")
    assert sandbox.get_info().state == SandboxState.PAUSED


def test_metrics_are_the_hosts_account(sandbox):
    metrics = wait_for(lambda: sandbox.get_metrics())
    assert metrics[0].cpu_count >= 1
    assert 0 < metrics[0].mem_used <= metrics[0].mem_total
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    assert sandbox.get_metrics(start=long_ago, end=long_ago + datetime.timedelta(hours=1)) == []


def test_metrics_have_a_history(sandbox):
    second = datetime.timedelta(seconds=1)

    def several():
        metrics = sandbox.get_metrics()
        return metrics if metrics and metrics[-1].timestamp - metrics[0].timestamp > 3 * second else None

    metrics = wait_for(several, 20, "samples of three seconds")
    times = [each.timestamp for each in metrics]
    assert times == sorted(times)
    assert all(0 < each.mem_used <= each.mem_total and each.disk_total > 0 for each in metrics)
    # Clients ask in whole seconds. The first sample is before the cut and the last one is after it.
    cut = times[0].replace(microsecond=0) + second
    later = [each.timestamp for each in sandbox.get_metrics(start=cut, end=cut + 3600 * second)]
    after = [time for time in times if time >= cut]
    assert after and later[: len(after)] == after
    # The second that `end` names belongs to the answer.
    earlier = [each.timestamp for each in sandbox.get_metrics(start=cut - 60 * second, end=cut - second)]
    assert earlier == [time for time in times if time < cut]


def test_programs_inside_can_read_where_they_run(create):
    sandbox = create()
    wanted = {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox.sandbox_id, "E2B_TEMPLATE_ID": "base"}
    for name, value in wanted.items():
        assert sandbox.files.read(f"/run/e2b/.{name}") == value
        assert sandbox.commands.run(f"printenv {name}").stdout == f"{value}\n"


@needs_new_sdk
def test_rules_by_domain_name_are_refused_by_name(create):
    with pytest.raises(SandboxException, match="example.com"):
        create(network={"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
    sandbox = create()
    with pytest.raises(SandboxException, match="example.com"):
        sandbox.update_network({"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})


@needs_new_sdk
def test_the_network_can_be_closed_while_it_runs(create):
    sandbox = create()
    sandbox.update_network({"allow_internet_access": False})
    assert sandbox.get_info().allow_internet_access is False
    with pytest.raises(SandboxException, match="private"):
        sandbox.update_network({"allow_out": ["10.0.0.0/8"]})


@needs_new_sdk
def test_the_same_idempotency_key_gives_the_same_sandbox(server):
    body = {"templateID": "base", "timeout": 30}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    status, first = server.ask("POST", "/e2b/v2/sandboxes", server.key, body, headers)
    again, second = server.ask("POST", "/e2b/v2/sandboxes", server.key, body, headers)
    assert (status, again) == (201, 201)
    assert first["sandboxID"] == second["sandboxID"]
    server.ask("DELETE", f"/e2b/sandboxes/{first['sandboxID']}", server.key)


def test_bad_requests_are_told_apart(server):
    def create(**body):
        return server.ask("POST", "/e2b/v2/sandboxes", server.key, {"templateID": "base", **body})

    assert create(timeout=0) == (400, {"code": 400, "message": "Timeout must be greater than 0"})
    assert create(templateID="nobody")[0] == 404
    assert create(templateID="not a name!")[0] == 400
    assert create(autoPauseMemory=False)[0] == 400
    assert create(network={"rules": {"x.com": [{}]}})[0] == 400
    assert server.ask("GET", "/e2b/v2/sandboxes?limit=1000", server.key)[0] == 400
    assert server.ask("GET", "/e2b/v2/sandboxes", "e2b_" + "0" * 40)[0] == 401
    assert server.ask("GET", "/e2b/v2/sandboxes")[0] == 401


def test_templates_of_the_house_are_there(server):
    assert server.ask("GET", "/e2b/templates/aliases/base", server.key)[0] == 200
    status, listed = server.ask("GET", "/e2b/templates", server.key)
    assert status == 200 and "base" in listed[0]["names"]
    assert server.ask("GET", "/e2b/templates/aliases/nobody", server.key)[0] == 404
    assert server.ask("DELETE", "/e2b/templates/team%2Fmy-snap%3Adefault", server.key)[0] == 404


def test_the_sdk_knows_which_templates_exist(server):
    from e2b import Template

    assert Template.exists("base") is True
    assert Template.exists("nobody") is False


def test_the_log_says_what_became_of_a_sandbox(server, create):
    sandbox = create()
    sandbox.kill()
    status, logs = server.ask("GET", f"/e2b/sandboxes/{sandbox.sandbox_id}/logs", server.key)
    assert status == 200
    kinds = [json.loads(line["line"])["message"].split(":")[0] for line in logs["logs"]]
    assert kinds[0] == "sandbox.created" and kinds[-1] == "sandbox.destroyed"
