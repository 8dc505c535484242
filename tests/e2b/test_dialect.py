"""What a client asks for is done or refused by name; old clients' ids are understood."""

import pytest
from conftest import needs_new_sdk
from e2b import Sandbox


def test_an_id_may_have_the_name_of_a_machine_behind_it(server):
    made = Sandbox.create()
    long = f"{made.sandbox_id}-cove"
    assert Sandbox.connect(long).commands.run("echo hi").stdout == "hi\n"
    assert Sandbox.kill(long) is True
    _, left = server.ask("GET", "/e2b/v2/sandboxes", server.key)
    assert made.sandbox_id not in [one["sandboxID"] for one in left]


@needs_new_sdk
def test_what_is_not_served_is_refused_by_name(server):
    with pytest.raises(Exception, match="mcp: the gateway for MCP servers is not served"):
        Sandbox.create(mcp={"browserbase": {"apiKey": "x"}})
    with pytest.raises(Exception, match="network.dnsServers: an empty list"):
        Sandbox.create(network={"dns_servers": []})


def test_a_client_without_a_token_is_told_of_the_operators_switch(server):
    _, made = server.ask("POST", "/e2b/sandboxes", server.key, {"templateID": "base"})
    try:
        inside = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49999"}
        status, said = server.ask("POST", "/execute", None, {"code": "1"}, inside)
        assert status == 401 and "e2b.tokens_optional" in said["message"], said
    finally:
        server.ask("DELETE", f"/e2b/sandboxes/{made['sandboxID']}", server.key)
