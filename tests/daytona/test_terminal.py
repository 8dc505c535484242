"""Terminals: a shell that one can leave and come back to."""

import os

import pytest
from daytona import PtySize


def talk(handle, *lines, seconds=20):
    """Types the lines and reads until the shell ends."""
    seen = []
    for line in lines:
        handle.send_input(line + "\n")
    handle.wait(on_data=lambda data: seen.append(data), timeout=seconds)
    return b"".join(seen).decode(errors="replace")


@pytest.fixture
def name():
    return f"pty-{os.urandom(4).hex()}"


def test_what_is_typed_is_run_and_the_end_is_told(sandbox, name):
    handle = sandbox.process.create_pty_session(id=name, pty_size=PtySize(rows=30, cols=99), envs={"WHO": "me"})
    seen = talk(handle, "stty size", "echo $WHO-$TERM", "exit 3")
    assert "30 99" in seen and "me-xterm-256color" in seen
    assert handle.exit_code == 3


def test_it_stays_when_its_client_leaves(sandbox, name):
    handle = sandbox.process.create_pty_session(id=name, cwd="/tmp")
    handle.send_input("kept=yes\n")
    handle.disconnect()
    assert name in [one.id for one in sandbox.process.list_pty_sessions()]
    info = sandbox.process.get_pty_session_info(name)
    assert (info.id, info.active, info.cwd) == (name, True, "/tmp")
    resized = sandbox.process.resize_pty_session(name, PtySize(rows=40, cols=120))
    assert (resized.rows, resized.cols) == (40, 120)
    again = sandbox.process.connect_pty_session(name)
    assert "still-yes" in talk(again, "echo still-$kept", "exit")
    assert name not in [one.id for one in sandbox.process.list_pty_sessions()]


def test_a_name_is_taken_once_and_a_kill_is_an_end(sandbox, name):
    handle = sandbox.process.create_pty_session(id=name)
    with pytest.raises(Exception, match="(?i)already exists|409"):
        sandbox.process.create_pty_session(id=name)
    sandbox.process.kill_pty_session(name)
    handle.wait(timeout=20)
    assert handle.exit_code == 137
    with pytest.raises(Exception, match="not found"):
        sandbox.process.get_pty_session_info(name)


def test_nobody_connects_to_what_is_not_there(sandbox):
    with pytest.raises(Exception, match="not found: nosuch"):
        sandbox.process.connect_pty_session("nosuch").wait_for_connection(timeout=5)
