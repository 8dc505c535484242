"""Commands and programs: what they print, how they end, what they are given."""

import applicable
import pytest
from conftest import SDK, commands, printed


def test_output_and_exit_code(sandbox):
    done = sandbox.process.exec("echo out; echo err >&2; exit 42")
    assert (done.exit_code, printed(done)) == (42, "out\nerr\n")


def test_directory_environment_and_heredoc(sandbox):
    done = sandbox.process.exec("pwd; echo $A-$B; cat <<END\nheld\nEND", cwd="/tmp", env={"A": "1", "B": "2"})
    assert printed(done) == "/tmp\n1-2\nheld\n"
    # What the caller sets is not overwritten by a profile.
    assert sandbox.process.exec("echo $PATH", env={"PATH": "/usr/bin:/bin:/mine"}).result.strip().endswith("/mine")


# Older ones put the command into an argument themselves.
@applicable.needs(0, 190)
def test_a_command_longer_than_an_argument_may_be(sandbox):
    text = "x" * 300_000
    done = sandbox.process.exec(f"cat >/dev/null; echo '{text}' | wc -c")
    assert done.result.strip() == str(len(text) + 1)


def test_a_command_that_takes_too_long_is_ended(sandbox):
    with pytest.raises(Exception, match="(?i)timeout"):
        sandbox.process.exec("sleep 33.3", timeout=1)
    assert "sleep 33.3" not in commands(sandbox)


def test_what_is_left_in_the_background_goes_on(sandbox):
    sandbox.process.exec("(sleep 0.3; echo late > /tmp/late) > /dev/null 2>&1 &")
    done = sandbox.process.exec("for i in $(seq 100); do [ -e /tmp/late ] && break; sleep 0.1; done; cat /tmp/late")
    assert printed(done) == "late\n"


def test_an_empty_command_and_a_bad_name_are_refused(server, sandbox):
    path = f"/daytona/toolbox/{sandbox.id}/process/execute"
    assert server.ask("POST", path, server.key, {"command": " "})[0] == 400
    status, said = server.ask("POST", path, server.key, {"command": "true", "envs": {"A B": "1"}})
    assert (status, "A B" in said["message"]) == (400, True)


def test_python_runs_with_arguments(sandbox):
    from daytona import CodeRunParams

    code = "import sys\nprint(sys.argv[1:])\nprint(sum(range(10)))"
    done = sandbox.process.code_run(code, params=CodeRunParams(argv=["a b", "c"]))
    assert done.exit_code == 0
    # Before 0.190 the client put the arguments into a shell line itself.
    assert done.result.startswith("['a b', 'c']" if SDK >= (0, 190) else "['a")
    assert "45" in done.result


def test_an_error_in_python_is_told(sandbox):
    done = sandbox.process.code_run("raise ValueError('boom')")
    assert done.exit_code == 1 and "ValueError: boom" in done.result
    assert sandbox.process.code_run("def broken(").exit_code != 0


# Older ones wrap the code themselves.
@applicable.needs(0, 190)
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "console.log([1, 2].map(n => n * 21).join())"),
        ("typescript", "const n: number[] = [1, 2]; console.log(n.map((x: number): number => x * 21).join())"),
    ],
)
def test_other_languages(server, sandbox, language, code):
    path = f"/daytona/toolbox/{sandbox.id}/process/code-run"
    status, done = server.ask("POST", path, server.key, {"code": code, "language": language})
    assert (status, done) == (200, {"exitCode": 0, "result": "21,42\n"})
    status, said = server.ask("POST", path, server.key, {"code": code, "language": "cobol"})
    assert (status, "cobol" in said["message"]) == (400, True)


def test_ports_are_seen(server, sandbox):
    sandbox.process.exec("python3 -m http.server 8123 >/dev/null 2>&1 & for i in $(seq 100); do "
                         "(: </dev/tcp/127.0.0.1/8123) 2>/dev/null && break; sleep 0.1; done")
    base = f"/daytona/toolbox/{sandbox.id}/port"
    assert 8123 in server.ask("GET", base, server.key)[1]["ports"]
    assert server.ask("GET", f"{base}/8123/in-use", server.key)[1] == {"isInUse": True}
    assert server.ask("GET", f"{base}/8124/in-use", server.key)[1] == {"isInUse": False}
    sandbox.process.exec("pkill -f 'http.server 8123'")
