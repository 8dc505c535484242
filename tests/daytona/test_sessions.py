"""Sessions: a shell that remembers, commands in the background, logs that can be followed."""

import asyncio
import os

import pytest
from conftest import commands, wait_for
from daytona import SessionExecuteRequest


@pytest.fixture
def session(sandbox):
    name = f"session-{os.urandom(4).hex()}"
    sandbox.process.create_session(name)
    yield name
    if name in [one.session_id for one in sandbox.process.list_sessions()]:
        sandbox.process.delete_session(name)


def run(sandbox, session, command, **more):
    return sandbox.process.execute_session_command(session, SessionExecuteRequest(command=command, **more))


def ended(sandbox, session, command):
    return sandbox.process.get_session_command(session, command).exit_code is not None


def test_the_shell_remembers(sandbox, session):
    run(sandbox, session, "cd /tmp; export A=1; b=2; greet() { echo hello $1; }")
    done = run(sandbox, session, "echo $PWD $A $b; greet you")
    assert (done.exit_code, done.stdout) == (0, "/tmp 1 2\nhello you\n")


def test_both_streams_and_the_code(sandbox, session):
    done = run(sandbox, session, "echo out; echo err >&2; (exit 7)")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 7)
    logs = sandbox.process.get_session_command_logs(session, done.cmd_id)
    assert (logs.stdout, logs.stderr) == ("out\n", "err\n")


def test_odd_commands_do_not_hang_the_shell(sandbox, session):
    assert run(sandbox, session, "echo 'unbalanced").exit_code != 0
    assert run(sandbox, session, "cat <<END\nheld\nEND").stdout == "held\n"
    assert run(sandbox, session, "cat").stdout == ""
    assert run(sandbox, session, "printf 'no newline é'").stdout == "no newline é"
    assert run(sandbox, session, "echo still here").stdout == "still here\n"


def test_what_a_command_left_behind_does_not_speak_in_the_next(sandbox, session):
    run(sandbox, session, "(sleep 0.2; echo from behind) &")
    assert run(sandbox, session, "sleep 0.5; echo mine").stdout == "mine\n"


def test_a_command_in_the_background_is_watched(sandbox, session):
    started = run(sandbox, session, "echo begun; sleep 0.3; echo done; (exit 3)", run_async=True)
    assert started.exit_code is None
    wait_for(lambda: ended(sandbox, session, started.cmd_id), what="the end of the command")
    seen = sandbox.process.get_session_command(session, started.cmd_id)
    assert seen.exit_code == 3 and "echo begun" in seen.command
    assert sandbox.process.get_session_command_logs(session, started.cmd_id).stdout == "begun\ndone\n"
    commands = sandbox.process.get_session(session).commands
    assert [one.id for one in commands] == [started.cmd_id]


def test_logs_are_followed_to_the_end(sandbox, session):
    started = run(sandbox, session, "for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.1; done", run_async=True)
    out, err = [], []
    following = sandbox.process.get_session_command_logs_async(session, started.cmd_id, out.append, err.append)
    asyncio.run(asyncio.wait_for(following, 20))
    assert "".join(out) == "out1\nout2\nout3\n"
    assert "".join(err) == "err1\nerr2\nerr3\n"


def test_a_follower_of_a_shell_that_ends_is_let_go(sandbox, session):
    started = run(sandbox, session, "echo last words; exit 5", run_async=True)
    out = []
    following = sandbox.process.get_session_command_logs_async(session, started.cmd_id, out.append, out.append)
    asyncio.run(asyncio.wait_for(following, 20))
    assert "".join(out) == "last words\n"
    assert sandbox.process.get_session_command(session, started.cmd_id).exit_code == 5
    with pytest.raises(Exception, match="has ended"):
        run(sandbox, session, "true")


def test_input_reaches_the_command(sandbox, session):
    started = run(sandbox, session, "read line; echo got $line", run_async=True)
    sandbox.process.send_session_command_input(session, started.cmd_id, "hello")
    wait_for(lambda: ended(sandbox, session, started.cmd_id), what="the end of the command")
    assert "got hello\n" in sandbox.process.get_session_command_logs(session, started.cmd_id).stdout
    with pytest.raises(Exception, match="has ended"):
        sandbox.process.send_session_command_input(session, started.cmd_id, "late")


def test_a_name_is_taken_once_and_free_after_the_end(sandbox, session):
    with pytest.raises(Exception, match="already exists"):
        sandbox.process.create_session(session)
    assert session in [one.session_id for one in sandbox.process.list_sessions()]
    started = run(sandbox, session, "sleep 44.4", run_async=True)
    wait_for(lambda: "sleep 44.4" in commands(sandbox), what="the command to run")
    sandbox.process.delete_session(session)
    assert "sleep 44.4" not in commands(sandbox)
    with pytest.raises(Exception, match="not found"):
        sandbox.process.get_session_command(session, started.cmd_id)
    sandbox.process.create_session(session)


def test_a_session_outlives_the_server(server, fresh):
    fresh.process.create_session("durable")
    run(fresh, "durable", "export KEPT=yes")
    started = run(fresh, "durable", "sleep 1; echo survived", run_async=True)
    server.stop()
    server.start()
    wait_for(lambda: ended(fresh, "durable", started.cmd_id), what="the end of the command")
    assert fresh.process.get_session_command_logs("durable", started.cmd_id).stdout == "survived\n"
    assert run(fresh, "durable", "echo $KEPT").stdout == "yes\n"


def test_each_generation_gets_logs_it_can_read(server, sandbox, session):
    done = run(sandbox, session, "echo out; echo err >&2")
    path = f"/daytona/toolbox/{sandbox.id}/process/session/{session}/command/{done.cmd_id}/logs"
    new = server.ask("GET", path, server.key, headers={"X-Daytona-SDK-Version": "0.226.1"})[1]
    assert (new["stdout"], new["stderr"]) == ("out\n", "err\n")
    old = server.ask("GET", path, server.key, headers={"X-Daytona-SDK-Version": "0.155.0"})[1]
    assert old == b"\x01\x01\x01out\n\x02\x02\x02err\n"
    oldest = server.ask("GET", path, server.key)[1]
    assert oldest == b"out\nerr\n"
