"""Code that keeps its variables."""

import pytest
from conftest import needs_newest_sdk


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


@needs_newest_sdk
def test_figures_that_a_program_shows_come_as_charts(daytona):
    from daytona import CreateSandboxFromSnapshotParams

    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot="code-interpreter"))
    try:
        code = (
            "import sys, datetime\nimport matplotlib.pyplot as plt\nprint('before', end=' ')\n"
            "plt.bar(['a', 'b'], [1, 2.5])\nplt.title('T')\nplt.show()\n"
            "left, right = plt.subplots(1, 2)[1]\nleft.plot([datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], [3, 4])\nright.scatter([1], [2])\n"
            "plt.show()\nprint('after')\n"
        )
        done = sandbox.process.code_run(code)
        assert (done.exit_code, done.result) == (0, "before after\n"), done.result
        bars, both = done.artifacts.charts
        assert (bars.type, bars.title) == ("bar", "T") and bars.png.startswith("iVBOR")
        assert [(element.label, float(element.value)) for element in bars.elements] == [("a", 1), ("b", 2.5)]
        assert both.type == "composite_chart" and [chart.type for chart in both.elements] == ["line", "scatter"]
        failed = sandbox.process.code_run("import matplotlib\ndef f():\n    raise ValueError('boom')\nf()")
        assert failed.exit_code == 1 and failed.artifacts.charts == []
        assert failed.result.splitlines()[1:] == ['  File "<stdin>", line 4, in <module>', '  File "<stdin>", line 3, in f', "ValueError: boom"]
    finally:
        daytona.delete(sandbox)
