"""Cells that keep their variables, through the code interpreter's own SDK."""

import threading
import time

import e2b_code_interpreter as code_interpreter
import pytest
from conftest import wait_for
from e2b import TimeoutException


@pytest.fixture
def box(server):
    sandbox = code_interpreter.Sandbox.create()
    yield sandbox
    sandbox.kill()


def test_variables_stay_and_the_last_expression_is_the_result(box):
    first = box.run_code("x = 6\nprint('made')")
    assert (first.text, first.logs.stdout, first.error) == (None, ["made\n"], None)
    assert box.run_code("x * 7").text == "42"
    assert box.run_code("'a string'").text == "a string"


def test_output_comes_in_order_and_to_callbacks(box):
    heard = []
    execution = box.run_code(
        "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')",
        on_stdout=lambda message: heard.append(message.line),
        on_stderr=lambda message: heard.append(message.line),
    )
    assert heard == ["one\n", "two\n", "three\n"]
    assert execution.logs.stdout == ["one\n", "three\n"] and execution.logs.stderr == ["two\n"]


def test_an_error_has_name_value_and_traceback_and_the_context_goes_on(box):
    box.run_code("kept = 1")
    error = box.run_code("1 / 0").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero") and "1 / 0" in error.traceback
    assert box.run_code("kept").text == "1"


def test_contexts_share_nothing(box):
    context = box.create_code_context(cwd="/tmp")
    box.run_code("mine = 1")
    assert box.run_code("mine", context=context).error.name == "NameError"
    assert box.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert context.id in [known.id for known in box.list_code_contexts()]
    box.restart_code_context(context)
    box.remove_code_context(context)
    assert context.id not in [known.id for known in box.list_code_contexts()]


def test_a_context_in_roots_home_is_roots_as_in_the_original(box):
    context = box.create_code_context(cwd="/root")
    assert box.run_code("import os; (os.getcwd(), os.getuid())", context=context).text == "('/root', 0)"
    box.restart_code_context(context)
    assert box.run_code("import os; os.getcwd()", context=context).text == "/root"
    assert box.run_code("import os; os.getuid()").text == "1000", "others are the user's"
    with pytest.raises(Exception, match="does not exist"):
        box.create_code_context(cwd="/nowhere")


def test_the_newest_context_is_listed_last(box):
    context = box.create_code_context()
    listed = box.list_code_contexts()
    assert {known.language for known in listed[:2]} == {"python", "javascript"}, "those that the original starts by itself"
    assert listed[-1].id == context.id
    box.remove_code_context(context)


def test_every_context_that_is_listed_is_there(box):
    listed = {context.language: context for context in box.list_code_contexts()}
    assert {"python", "javascript"} <= set(listed)
    for context in listed.values():
        box.restart_code_context(context)
    assert box.run_code("1 + 1", context=listed["python"]).text == "2"
    box.remove_code_context(listed["javascript"])
    assert "javascript" not in [context.language for context in box.list_code_contexts()]
    assert box.run_code("1 + 2", language="javascript").text == "3", "a cell brings it back"
    assert "javascript" in [context.language for context in box.list_code_contexts()]


def test_cells_can_read_where_they_run_and_find_what_pip_installs(box):
    told = box.run_code("import os; (os.environ['E2B_SANDBOX'], os.environ['E2B_SANDBOX_ID'], os.environ['LANG'])").text
    assert told == str(("true", box.sandbox_id, "C.UTF-8"))
    assert box.run_code("os.environ['PATH'].split(':')[0]").text == "/home/user/.local/bin"


@pytest.mark.parametrize(
    "language, code, expected",
    [
        ("javascript", "const a = await Promise.resolve(20); a + 1", "21"),
        ("typescript", "interface P { n: number }\nconst p: P = { n: 5 };\np.n", "5"),
    ],
)
def test_other_languages(box, language, code, expected):
    assert box.run_code(code, language=language).text == expected


def test_bash_keeps_its_variables(box):
    box.run_code("export GREETING=hello", language="bash")
    assert box.run_code("echo $GREETING there", language="bash").logs.stdout == ["hello there\n"]


def test_environment_lasts_for_one_cell(box):
    assert box.run_code("import os; os.environ['K']", envs={"K": "v"}).text == "v"
    assert box.run_code("os.environ.get('K', 'gone')").text == "gone"


def test_lists_and_dicts_come_as_json_too(box):
    assert box.run_code("{'a': [1, 2]}").results[0].json == {"a": [1, 2]}


@pytest.mark.parametrize(
    "cell, name",
    [
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import os; os._exit(3)", "SystemExit"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("input('who?')", "RuntimeError"),
        ("'x' * (100 << 20)", "ResultTooLarge"),
        ("x = []\nwhile True: x.append(b'x' * (1 << 24))", "OutOfMemory"),
        ("bytearray(1 << 46)", "MemoryError"),
    ],
)
def test_what_would_end_an_interpreter_is_a_clear_error_and_the_sandbox_lives(box, cell, name):
    error = box.run_code(cell).error
    assert error is not None and error.name == name, error
    assert box.run_code("1 + 1").text == "2"


def test_a_fork_in_a_cell_ends_with_the_cell(box):
    execution = box.run_code("import os\npid = os.fork()\nprint('child' if pid == 0 else 'parent')\nif pid: os.waitpid(pid, 0)")
    assert sorted("".join(execution.logs.stdout).split()) == ["child", "parent"]
    assert box.run_code("2 + 2").text == "4"


def test_a_client_that_leaves_interrupts_its_cell(box):
    box.run_code("seen = 0")
    with pytest.raises(TimeoutException):
        box.run_code("while True: seen += 1", timeout=1)
    began = time.monotonic()
    assert int(box.run_code("seen").text) > 0
    assert time.monotonic() - began < 10


def test_many_cells_at_once_take_their_turns(box):
    box.run_code("turns = []")
    threads = [threading.Thread(target=box.run_code, args=(f"turns.append({n})",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert box.run_code("sorted(turns)").text == str(list(range(8)))


def test_an_endless_print_is_streamed_and_can_be_left(box):
    with pytest.raises(TimeoutException):
        box.run_code("while True: print('x' * 1000)", timeout=1)
    assert box.run_code("'alive'").text == "alive"


def test_a_pool_of_base_has_its_interpreter_waiting_and_it_knows_nobody(server):
    ask = lambda method, path, body=None: server.ask(method, path, server.key, body)
    assert ask("PUT", "/api/pools/base", {"size": 2})[0] == 200
    pool = lambda: next(pool for pool in ask("GET", "/api/pools")[1] if pool["template"] == "base")
    try:
        wait_for(lambda: pool()["warm"] == 2, 60, "a warm pool")
        boxes = [code_interpreter.Sandbox.create("base", timeout=60, envs={"WHO": name}) for name in "ab"]
        try:
            assert pool()["hits"] >= 2
            for box, name in zip(boxes, "ab"):
                assert box.run_code("sorted(name for name in globals() if name[:1] != '_')").text == "['display']"
                assert box.run_code("import os\nos.environ['WHO'], os.getcwd()").text == f"('{name}', '/home/user')"
                assert all(context.id.startswith("default-") for context in box.list_code_contexts())
            boxes[0].run_code("secret = 1")
            assert boxes[1].run_code("secret").error.name == "NameError"
            assert len({box.run_code("hash('a'), id(object)").text for box in boxes}) == 2
        finally:
            for box in boxes:
                box.kill()
    finally:
        ask("DELETE", "/api/pools/base")


def test_streams_are_files_as_code_expects_them(box):
    assert box.run_code("import sys, io\nisinstance(sys.stdout, io.TextIOBase) and sys.stdout.encoding").text == "utf-8"
    said = box.run_code("sys.stdout.buffer.write(b'bytes\\n')\nwith sys.stdout as out: out.writelines(['a', 'b'])\nprint('c')")
    assert "".join(said.logs.stdout) == "bytes\nabc\n"


def test_a_traceback_that_the_cell_prints_itself_has_its_lines(box):
    said = box.run_code("import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()")
    assert "    1 / 0\n" in "".join(said.logs.stderr)
