"""E2B's code interpreter SDK for Python: cells that keep their variables, rich results, contexts."""

from e2b_code_interpreter import Sandbox
from story import FILE, TEXT, contains, equal, step

with step("create"):
    make = getattr(Sandbox, "create", None) or Sandbox
    sandbox = make(timeout=120)
with step("code"):
    sandbox.run_code("x = 6")
    equal(sandbox.run_code("x * 7").text, "42")
    printed = sandbox.run_code("print('hi')")
    equal("".join(printed.logs.stdout), "hi\n")
    equal(sandbox.run_code("1 / 0").error.name, "ZeroDivisionError")
with step("table"):
    told = sandbox.run_code("import pandas; pandas.DataFrame({'a': [1, 2]})")
    contains(told.results[0].html or "", "<table")
with step("figure"):
    told = sandbox.run_code("import matplotlib.pyplot as plot; plot.plot([1, 2]); plot.show()")
    equal([bool(result.png) for result in told.results if result.png], [True])
with step("context"):
    if hasattr(sandbox, "create_code_context"):
        context = sandbox.create_code_context(cwd="/tmp")
        equal("".join(sandbox.run_code("import os; print(os.getcwd())", context=context).logs.stdout), "/tmp\n")
with step("command"):
    equal(sandbox.commands.run("echo hi").stdout, "hi\n")
with step("write and read"):
    sandbox.files.write(FILE, TEXT)
    equal(sandbox.files.read(FILE), TEXT)
    equal(sandbox.run_code(f"len(open('{FILE}').read())").text, str(len(TEXT)))
with step("delete"):
    sandbox.kill()
