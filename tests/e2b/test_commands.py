"""Commands and terminals through the synchronous Python SDK."""

import time

import pytest
from conftest import needs_new_sdk, wait_for
from e2b import CommandExitException, NotFoundException, PtySize, TimeoutException


def test_output_error_and_exit_code_come_back(sandbox):
    done = sandbox.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo before; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "before\n")


def test_a_command_has_its_user_directory_and_environment(sandbox):
    assert sandbox.commands.run("id -un; pwd; umask").stdout.split() == ["user", "/home/user", "0022"]
    assert sandbox.commands.run("id -un; echo $HOME", user="root").stdout.split() == ["root", "/root"]
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("echo $ONE", envs={"ONE": "1"}).stdout == "1\n"
    assert sandbox.commands.run("echo -$ONE-").stdout == "--\n"


def test_a_command_leads_no_session_so_that_setsid_is_waited_for(sandbox):
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("setsid sh -c 'sleep 1; echo done; exit 3'")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "done\n")


def test_programs_of_the_users_own_are_on_the_path_and_text_is_utf_8(sandbox):
    sandbox.commands.run("mkdir -p ~/.local/bin && printf '#!/bin/sh\necho mine\n' > ~/.local/bin/own && chmod +x ~/.local/bin/own")
    assert sandbox.commands.run("own; locale charmap").stdout == "mine\nUTF-8\n"
    heard = []
    terminal = sandbox.pty.create(PtySize(24, 80))
    sandbox.pty.send_stdin(terminal.pid, b"own; locale charmap; exit\n")
    terminal.wait(on_pty=lambda data: heard.append(data))
    assert b"\rmine\r\nUTF-8\r\n" in b"".join(heard), heard


def test_mistakes_have_their_own_answers(sandbox):
    from e2b import AuthenticationException, InvalidArgumentException

    with pytest.raises(InvalidArgumentException, match="cwd '/nowhere' does not exist"):
        sandbox.commands.run("true", cwd="/nowhere")
    with pytest.raises(AuthenticationException, match="invalid username: 'nobody-here'"):
        sandbox.commands.run("true", user="nobody-here")


def test_output_streams_while_the_command_runs(sandbox):
    seen = []
    done = sandbox.commands.run(
        "for i in 1 2 3; do echo $i; sleep 0.3; done", on_stdout=lambda text: seen.append((text, time.monotonic()))
    )
    assert "".join(text for text, _ in seen) == done.stdout == "1\n2\n3\n"
    assert seen[-1][1] - seen[0][1] > 0.4


def test_much_output_arrives_whole(sandbox):
    done = sandbox.commands.run("seq 1 300000")
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 300001))


def test_a_deadline_kills_and_is_told_as_such(sandbox):
    began = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 77", timeout=1)
    assert time.monotonic() - began < 8
    wait_for(lambda: sandbox.commands.list() == [], 10, "the process to be gone")


def test_background_commands_are_listed_signalled_and_waited_for(sandbox):
    command = sandbox.commands.run("sleep 100", background=True)
    listed = {process.pid: process for process in sandbox.commands.list()}
    assert listed[command.pid].cmd == "/bin/bash"
    assert listed[command.pid].args == ["-l", "-c", "sleep 100"]
    assert sandbox.commands.kill(command.pid) is True
    with pytest.raises(CommandExitException) as ended:
        command.wait()
    assert ended.value.exit_code == -1 and "signal: killed" in str(ended.value.error)
    assert sandbox.commands.kill(command.pid) is False
    with pytest.raises(CommandExitException):
        sandbox.commands.run(f"kill -0 {command.pid}")


def test_a_client_that_lost_its_connection_sees_all_output(sandbox):
    command = sandbox.commands.run("echo early; sleep 1; echo late; sleep 100", background=True)
    command.disconnect()
    seen = []
    again = sandbox.commands.connect(command.pid)
    sandbox.commands.run("sleep 1.5")
    sandbox.commands.kill(command.pid)
    with pytest.raises(CommandExitException):
        again.wait(on_stdout=seen.append)
    assert "".join(seen) == "early\nlate\n"


def test_connect_to_no_process_is_told(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999999)


def test_input_is_written_and_closed(sandbox):
    command = sandbox.commands.run("cat; echo done", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "one\n")
    sandbox.commands.send_stdin(command.pid, "two\n")
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout == "one\ntwo\ndone\n"


def test_input_without_a_pipe_is_refused(sandbox):
    command = sandbox.commands.run("sleep 100", background=True, stdin=False)
    with pytest.raises(Exception, match="stdin not enabled or closed"):
        sandbox.commands.send_stdin(command.pid, "x")
    command.kill()


@needs_new_sdk
def test_input_streams_in_order(sandbox):
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.stream_input(command.pid, (f"{number}\n" for number in range(500)))
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout == "".join(f"{number}\n" for number in range(500))


def test_a_terminal_answers_and_changes_its_size(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "123"}, cwd="/tmp")
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $ABC-$TERM; pwd; exit 4\n")
    seen = []
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=lambda data: seen.append(data))
    text = b"".join(seen).decode()
    assert ended.value.exit_code == 4
    assert "30 100" in text and "123-xterm-256color" in text and "/tmp" in text


def test_a_kill_of_the_sandbox_ends_its_streams_with_a_clear_word(sandbox):
    command = sandbox.commands.run("sleep 100", background=True)
    sandbox.kill()
    with pytest.raises(TimeoutException, match="sandbox was killed or reached its end of life"):
        command.wait()


@needs_new_sdk
def test_git_of_the_sandbox_is_driven(sandbox):
    sandbox.git.init("/tmp/repository")
    sandbox.files.write("/tmp/repository/a.txt", "a")
    status = sandbox.git.status("/tmp/repository")
    assert [entry.name for entry in status.file_status] == ["a.txt"]
