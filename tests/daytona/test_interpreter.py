"""Code that keeps its variables."""

import pytest


def test_variables_stay(sandbox):
    sandbox.code_interpreter.run_code("kept = 40")
    done = sandbox.code_interpreter.run_code("import sys\nprint(kept + 2)\nprint('oops', file=sys.stderr)")
    assert (done.stdout, done.stderr, done.error) == ("42\n", "oops\n", None)


def test_an_error_is_a_result(sandbox):
    done = sandbox.code_interpreter.run_code("print('before')\nraise ValueError('boom')")
    assert done.stdout == "before\n"
    assert (done.error.name, done.error.value) == ("ValueError", "boom")
    assert "ValueError" in done.error.traceback


def test_contexts_do_not_see_each_other(sandbox):
    one, two = sandbox.code_interpreter.create_context(), sandbox.code_interpreter.create_context(cwd="/tmp")
    try:
        sandbox.code_interpreter.run_code("mine = 1", context=one)
        done = sandbox.code_interpreter.run_code("import os; print('mine' in globals(), os.getcwd())", context=two)
        assert done.stdout == "False /tmp\n"
        assert {one.id, two.id} <= {context.id for context in sandbox.code_interpreter.list_contexts()}
    finally:
        sandbox.code_interpreter.delete_context(one)
        sandbox.code_interpreter.delete_context(two)
    assert one.id not in [context.id for context in sandbox.code_interpreter.list_contexts()]
    with pytest.raises(Exception, match="not found"):
        sandbox.code_interpreter.run_code("1", context=one)


def test_what_takes_too_long_is_ended_and_the_rest_goes_on(sandbox):
    sandbox.code_interpreter.run_code("before = 1")
    with pytest.raises(Exception, match="(?i)time"):
        sandbox.code_interpreter.run_code("import time\ntime.sleep(60)", timeout=1)
    assert sandbox.code_interpreter.run_code("print(before)").stdout == "1\n"


def test_output_comes_as_it_is_made(sandbox):
    seen = []
    code = "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.05)"
    sandbox.code_interpreter.run_code(code, on_stdout=lambda message: seen.append(message.output))
    assert "".join(seen) == "0\n1\n2\n"
