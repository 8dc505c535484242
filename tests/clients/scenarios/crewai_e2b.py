"""CrewAI's E2B tools: one makes the sandbox, the others join it."""

from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool
from story import FILE, TEXT, contains, equal, step

with step("create"):
    shell = E2BExecTool(persistent=True)
    equal(shell.run(command="echo hi")["stdout"], "hi\n")
    files = E2BFileTool(sandbox_id=shell._persistent_sandbox.sandbox_id)
with step("write and read"):
    files.run(action="write", path=FILE, content=TEXT)
    equal(files.run(action="read", path=FILE)["content"], TEXT)
with step("list files"):
    contains(str(files.run(action="list", path="/home/user")), FILE)
with step("code"):
    contains(str(E2BPythonTool().run(code="x = 6\nx * 7")), "42")
with step("delete"):
    shell.close()
