"""Cells on the template `code-interpreter`, with real libraries: figures, charts, tables, IPython's own words."""

import base64
import os
import pathlib
import subprocess

import e2b_code_interpreter as code_interpreter
import pytest

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def box(built_server):
    sandbox = code_interpreter.Sandbox.create(timeout=300)
    yield sandbox
    sandbox.kill()


def shown(box, code):
    """The figure among the results of a cell that shows one without asking for it."""
    execution = box.run_code(code)
    assert execution.error is None, execution.error
    figures = [result for result in execution.results if result.png]
    assert len(figures) == 1, execution.results
    assert base64.b64decode(figures[0].png).startswith(PNG)
    return figures[0].chart


def test_the_template_is_listed_and_has_what_it_says(built_server, box):
    status, found = built_server.ask("GET", "/e2b/templates", built_server.key)
    assert status == 200 and "code-interpreter-v1" in sum((template["aliases"] for template in found), [])
    _, told = built_server.ask("GET", "/api/templates/code-interpreter", built_server.key)
    assert told["note"] is None and "pandas" in told["description"]
    _, snapshots = built_server.ask("GET", "/daytona/api/snapshots", built_server.key)
    assert "code-interpreter" in [snapshot["name"] for snapshot in snapshots["items"]]
    assert box.run_code("import IPython, numpy, pandas, matplotlib; 'all there'").text == "all there"


def test_without_the_layer_the_name_still_works_and_the_note_says_what_to_do(server):
    _, told = server.ask("GET", "/api/templates/code-interpreter-v1", server.key)
    assert "cove template build code-interpreter" in told["note"]


def test_the_layer_cannot_be_changed_from_inside(box):
    path = "/usr/local/share/cove/python"
    assert box.commands.run(f"sudo sh -c 'echo 9.9 > {path}' && cat {path}").stdout == "9.9\n"
    other = code_interpreter.Sandbox.create(timeout=60)
    try:
        assert other.commands.run(f"cat {path}").stdout != "9.9\n"
    finally:
        other.kill()


def test_a_line(box):
    chart = shown(box, "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='up')\nplt.title('T'); plt.xlabel('Time (s)')\nNone")
    assert (chart.type, chart.title, chart.x_unit) == ("line", "T", "s")
    assert [(element.label, [tuple(point) for point in element.points]) for element in chart.elements] == [("up", [(1, 3), (2, 4)])]


def test_a_scatter(box):
    chart = shown(box, "import matplotlib.pyplot as plt\nplt.scatter([1, 2], [3, 4])\nNone")
    assert chart.type == "scatter" and [tuple(point) for point in chart.elements[0].points] == [(1, 3), (2, 4)]


def test_bars(box):
    chart = shown(box, "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [5, 7])\nNone")
    assert chart.type == "bar" and [(bar.label, bar.value) for bar in chart.elements] == [("a", 5), ("b", 7)]


def test_a_pie(box):
    chart = shown(box, "import matplotlib.pyplot as plt\nplt.pie([25, 75], labels=['x', 'y'])\nNone")
    assert chart.type == "pie" and [part.label for part in chart.elements] == ["x", "y"]
    assert chart.elements[1].angle == pytest.approx(270, abs=1)


def test_boxes(box):
    chart = shown(box, "import matplotlib.pyplot as plt\nplt.boxplot([[1, 2, 3, 4, 5]])\nNone")
    assert chart.type == "box_and_whisker"
    assert (chart.elements[0].min, chart.elements[0].median, chart.elements[0].max) == (1, 3, 5)


def test_a_table(box):
    result = box.run_code("import pandas as pd\npd.DataFrame({'n': [1, 2], 'at': pd.to_datetime(['2024-01-02', '2024-01-03'])})").results[0]
    assert "<table" in result.html and "n" in result.text
    assert result.data["n"] == [1, 2] and result.data["at"][0].startswith("2024-01-02")


def test_ipythons_own_words(box):
    assert box.run_code("!echo from the shell").logs.stdout == ["from the shell\n"]
    assert box.run_code("%%bash\nx=6\necho $((x * 7))").logs.stdout == ["42\n"]
    assert box.run_code("import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "awaited"
    assert "numpy" in "".join(box.run_code("%pip list").logs.stdout)


def test_an_image_that_is_saved_is_shown(box):
    execution = box.run_code("from PIL import Image\nImage.new('RGB', (2, 2)).save('/tmp/x.png')")
    assert base64.b64decode(execution.results[0].png).startswith(PNG)


def test_contexts_are_copies_that_share_nothing(box):
    one, two = box.create_code_context(), box.create_code_context(cwd="/tmp")
    box.run_code("mine = 1\nimport os\nos.environ['MINE'] = 'x'\nimport sys\nsys.path.append('/mine')", context=one)
    seen = "import os, sys\n('mine' in globals(), os.environ.get('MINE'), '/mine' in sys.path, os.getcwd())"
    assert box.run_code(seen, context=two).text == "(False, None, False, '/tmp')"
    draw = "import random, numpy\n(random.random(), numpy.random.random())"
    assert box.run_code(draw, context=one).text != box.run_code(draw, context=two).text
    assert box.run_code("import os\nos.getppid()", context=one).text == "1"


def test_a_new_package_is_there_for_the_next_context(box):
    folder = box.run_code("import site\nprint(site.getusersitepackages())").logs.stdout[0].strip()
    box.commands.run(f"mkdir -p {folder}/fresh && echo 'x = 5' > {folder}/fresh/__init__.py")
    context = box.create_code_context()
    assert box.run_code("import fresh\nfresh.x", context=context).text == "5"


def test_a_package_that_a_cell_installs_is_there_in_the_same_cell(built_server):
    """The user's folder of packages is not there when the interpreter begins: pip makes it."""
    sandbox = code_interpreter.Sandbox.create(timeout=60)
    try:
        install = "import os, site\np = site.getusersitepackages() + '/sudden'\n!mkdir -p {p} && echo 'x = 6' > {p}/__init__.py\n"
        assert sandbox.run_code(install + "import sudden\nsudden.x").text == "6"
        assert "pip 2" in "".join(sandbox.run_code("%pip --version").logs.stdout)
    finally:
        sandbox.kill()


def test_what_python_reads_at_its_start_is_heeded(built_server):
    sandbox = code_interpreter.Sandbox.create(timeout=60, envs={"PYTHONPATH": "/opt/mine", "COLOUR": "blue"})
    try:
        assert sandbox.run_code("import os, sys\n('/opt/mine' in sys.path, os.environ['COLOUR'])").text == "(True, 'blue')"
    finally:
        sandbox.kill()


def test_killing_everything_else_of_the_user_leaves_new_contexts_possible(box):
    """kill(2) with -1 spares the caller; the zygote and the other contexts are gone."""
    assert box.run_code("import os, signal\nos.kill(-1, signal.SIGKILL)\n'alone'").text == "alone"
    context = box.create_code_context()
    assert box.run_code("6 * 7", context=context).text == "42"


def test_filling_the_memory_kills_the_interpreter_and_the_error_names_limit_and_largest(box):
    box.run_code("kept = 1")
    error = box.run_code("x = []\nwhile True: x.append(b'x' * (1 << 24))").error
    assert error.name == "OutOfMemory" and "1.0 GiB" in error.value and "largest process python3" in error.value, error
    assert box.run_code("kept").error.name == "NameError"


def test_asking_for_more_than_there_can_be_is_an_error_of_the_cell(box):
    box.run_code("kept = 1")
    assert box.run_code("bytearray(1 << 46)").error.name == "MemoryError"
    assert box.run_code("kept").text == "1"


def test_a_pool_hands_out_warm_interpreters_that_know_nobody(built_server):
    ask = lambda method, path, body=None: built_server.ask(method, path, built_server.key, body)
    status, _ = ask("PUT", "/api/pools/code-interpreter", {"size": 2})
    assert status == 200
    from conftest import wait_for

    pool = lambda: next(pool for pool in ask("GET", "/api/pools")[1] if pool["template"] == "code-interpreter")
    try:
        wait_for(lambda: pool()["ready"] == 2, 120, "a full pool")
        sandboxes = [code_interpreter.Sandbox.create(timeout=60, envs={"WHO": name}) for name in ("a", "b")]
        try:
            assert pool()["hits"] >= 2
            for sandbox, name in zip(sandboxes, "ab"):
                assert sandbox.run_code("import os, sys\n('pandas' in sys.modules, os.environ['WHO'])").text == f"(True, '{name}')"
            first, second = (sandbox.run_code("import numpy\nnumpy.random.random()").text for sandbox in sandboxes)
            assert first != second
            sandboxes[0].run_code("secret = 1")
            assert sandboxes[1].run_code("secret").error.name == "NameError"
        finally:
            for sandbox in sandboxes:
                sandbox.kill()
    finally:
        ask("DELETE", "/api/pools/code-interpreter")


def test_the_javascript_sdk(built_server):
    suite = pathlib.Path(__file__).with_name("interpreter.test.mjs")
    command = ["node", "--test", "--test-reporter=tap", str(suite)]
    environment = {**os.environ, **built_server.environment()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
