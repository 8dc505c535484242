"""What a client asks for is done or refused by name, on real sandboxes."""

import base64
import time

from conftest import wait_for

# What a stop gives processes to end by themselves.
GRACE = 5

# A shell that cannot be asked to end.
STUBBORN = "trap '' TERM; echo ready > /tmp/ready; while :; do sleep 1; done"


def start_stubborn(sandbox):
    sandbox.process.exec(f"setsid nohup sh -c \"{STUBBORN}\" >/dev/null 2>&1 &")
    wait_for(lambda: sandbox.process.exec("cat /tmp/ready").exit_code == 0, what="a process that takes no word")


def test_a_forced_stop_does_not_wait_for_those_who_take_no_word(server, fresh):
    start_stubborn(fresh)
    begun = time.monotonic()
    status, stopped = server.ask("POST", f"/daytona/api/sandbox/{fresh.id}/stop?force=true", server.key)
    forced = time.monotonic() - begun
    assert (status, stopped["state"]) == (200, "stopped")
    assert forced < GRACE, forced
    assert server.ask("POST", f"/daytona/api/sandbox/{fresh.id}/start", server.key)[0] == 200
    start_stubborn(fresh)
    begun = time.monotonic()
    assert server.ask("POST", f"/daytona/api/sandbox/{fresh.id}/stop?force=false", server.key)[0] == 200
    assert time.monotonic() - begun >= GRACE


def test_a_blocked_network_is_opened_while_the_sandbox_runs(server):
    status, made = server.ask("POST", "/daytona/api/sandbox", server.key, {"networkBlockAll": True})
    assert (status, made["networkBlockAll"]) == (200, True), made
    path = f"/daytona/api/sandbox/{made['id']}"
    try:
        status, opened = server.ask("POST", f"{path}/network-settings", server.key, {"networkBlockAll": False})
        assert (status, opened["networkBlockAll"]) == (200, False), opened
        body = {"networkAllowList": "8.8.8.8/16"}
        status, listed = server.ask("POST", f"{path}/network-settings", server.key, body)
        assert (status, listed["networkAllowList"]) == (200, "8.8.0.0/16"), listed
        status, closed = server.ask("POST", f"{path}/network-settings", server.key, {"networkBlockAll": True})
        assert (status, closed["networkBlockAll"], closed["networkAllowList"]) == (200, True, None), closed
    finally:
        server.ask("DELETE", path, server.key)


def test_an_owner_that_nobody_is_is_a_wrong_request(server, sandbox):
    sandbox.process.exec("touch /tmp/owned")
    path = f"/daytona/toolbox/{sandbox.id}/files/permissions?path=/tmp/owned"
    for wrong in ("owner=nobody-here", "group=nobody-here"):
        status, said = server.ask("POST", f"{path}&{wrong}", server.key)
        assert status == 400 and "nobody-here" in said["message"], said
    missing = f"/daytona/toolbox/{sandbox.id}/files/permissions?path=/tmp/not-there&owner=root"
    assert server.ask("POST", missing, server.key)[0] == 404


def test_typescript_runs_as_sdks_before_0_171_ask_for_it(server, sandbox):
    code = "interface P { n: number }\nconst p: P = { n: 41 };\nconsole.log(p.n + 1, process.argv.slice(2).join('+'));"
    text = base64.b64encode(code.encode()).decode()
    line = (
        f""" sh -c 'echo {text} | base64 --decode | npx ts-node -O "{{\\\"module\\\":\\\"CommonJS\\\"}}" """
        f"""-e "$(cat)" x a b 2>&1 | grep -vE "npm notice"' """
    )
    ran = sandbox.process.exec(line)
    assert (ran.exit_code, ran.result.strip()) == (0, "42 a+b"), ran


def test_the_toolbox_is_port_2280_of_a_preview(server, sandbox):
    status, link = server.ask("GET", f"/daytona/api/sandbox/{sandbox.id}/ports/2280/preview-url", server.key)
    path = link["url"].removeprefix(server.url)
    token = {"X-Daytona-Preview-Token": link["token"]}
    ran = server.ask("POST", f"{path}/process/execute", None, {"command": "echo hi"}, token)
    assert ran == (200, {"exitCode": 0, "result": "hi\n"})
    assert server.ask("POST", f"{path}/process/execute", None, {"command": "echo hi"})[0] == 401


def test_measurements_are_those_that_were_taken(server, sandbox):
    _, told = server.ask("GET", f"/daytona/api/sandbox/{sandbox.id}/telemetry/metrics", server.key)
    series = {one["metricName"]: one["dataPoints"] for one in told["series"]}
    memory = [point["value"] for point in series["daytona.sandbox.memory.usage"]]
    assert memory and all(value > 0 for value in memory), told
    assert {len(points) for points in series.values()} == {len(memory)}


def test_a_template_that_is_not_built_says_so(server):
    _, snapshots = server.ask("GET", "/daytona/api/snapshots", server.key)
    for snapshot in snapshots["items"]:
        built = snapshot["errorReason"] is None
        assert snapshot["state"] == ("active" if built else "inactive"), snapshot
        assert not snapshot["createdAt"].startswith("1970"), snapshot
