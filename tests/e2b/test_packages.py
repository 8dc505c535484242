"""The packages of the other world: the JavaScript SDK and the command line, as npm has them."""

import os
import pathlib
import subprocess

import pytest

PACKAGES = os.environ["E2B_NODE_PACKAGES"]  # run.sh sets it


def run(server, arguments, home, **kwargs):
    environment = {**os.environ, **server.environment(), "HOME": str(home), "NO_COLOR": "1"}
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=180, **kwargs)


@pytest.fixture
def cli(server, tmp_path):
    program = pathlib.Path(PACKAGES).parent / "node_modules" / ".bin" / "e2b"

    def call(*arguments, **kwargs):
        return run(server, [str(program), *arguments], tmp_path, **kwargs)

    return call


def test_the_javascript_sdk(server, tmp_path):
    suite = pathlib.Path(__file__).with_name("sdk.test.mjs")
    done = run(server, ["node", "--test", "--test-reporter=tap", str(suite)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_line_lists_runs_and_ends(cli, create):
    sandbox = create()
    listed = cli("sandbox", "list")
    assert sandbox.sandbox_id in listed.stdout, listed.stdout + listed.stderr
    ran = cli("sandbox", "exec", sandbox.sandbox_id, "echo", "from the command line")
    assert "from the command line" in ran.stdout, ran.stdout + ran.stderr
    piped = cli("sandbox", "exec", sandbox.sandbox_id, "cat", input="piped in\n")
    assert "piped in" in piped.stdout, piped.stdout + piped.stderr
    logs = cli("sandbox", "logs", sandbox.sandbox_id)
    assert "sandbox.created" in logs.stdout, logs.stdout + logs.stderr
    info = cli("sandbox", "info", sandbox.sandbox_id)
    assert sandbox.sandbox_id in info.stdout, info.stdout + info.stderr
    figures = cli("sandbox", "metrics", sandbox.sandbox_id)
    assert figures.returncode == 0 and "CPU" in figures.stdout, figures.stdout + figures.stderr
    for verb in ("pause", "resume"):
        done = cli("sandbox", verb, sandbox.sandbox_id)
        assert done.returncode == 0, done.stdout + done.stderr
    assert sandbox.is_running()
    missing = cli("sandbox", "exec", "a" * 20, "true")
    assert missing.returncode != 0
    ended = cli("sandbox", "kill", sandbox.sandbox_id)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sandbox.is_running() is False


def test_the_command_line_opens_a_terminal(server, create, tmp_path):
    import pty
    import select
    import time

    sandbox = create()
    program = pathlib.Path(PACKAGES).parent / "node_modules" / ".bin" / "e2b"
    environment = {**os.environ, **server.environment(), "HOME": str(tmp_path), "TERM": "xterm"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(program, [str(program), "sandbox", "connect", sandbox.sandbox_id], environment)
    seen, asked, end = b"", False, time.monotonic() + 60
    try:
        while b"terminal says 42" not in seen and time.monotonic() < end:
            if select.select([terminal], [], [], 0.5)[0]:
                try:
                    seen += os.read(terminal, 4096)
                except OSError:
                    break
            if not asked and b"$" in seen:
                os.write(terminal, b"echo terminal says $((40+2))\n")
                asked = True
        assert b"terminal says 42" in seen, seen
        os.write(terminal, b"exit\n")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
