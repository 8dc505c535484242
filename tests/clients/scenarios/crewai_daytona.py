"""CrewAI's Daytona tools: one makes the sandbox, the others join it."""

from crewai_tools import DaytonaExecTool, DaytonaFileTool, DaytonaPythonTool
from story import FILE, TEXT, contains, equal, step

with step("create"):
    shell = DaytonaExecTool(persistent=True)
    equal(shell.run(command="echo hi")["result"].strip(), "hi")
    files = DaytonaFileTool(sandbox_id=shell._persistent_sandbox.id)
with step("write and read"):
    files.run(action="write", path=f"/tmp/{FILE}", content=TEXT)
    equal(files.run(action="read", path=f"/tmp/{FILE}")["content"], TEXT)
with step("list files"):
    contains(str(files.run(action="list", path="/tmp")), FILE)
with step("code"):
    equal(DaytonaPythonTool().run(code="print(6 * 7)")["result"].strip(), "42")
with step("delete"):
    shell.close()
