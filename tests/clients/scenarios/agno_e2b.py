"""Agno's E2B toolkit, called as its agent calls it."""

import json

from agno.tools.e2b import E2BTools
from story import FILE, TEXT, contains, equal, step

with step("create"):
    tools = E2BTools(timeout=120)
with step("code"):
    contains(tools.run_python_code("x = 6\nprint(x * 7)"), "42")
with step("command"):
    contains(str(tools.run_command("echo hi")), "hi")
with step("write and read"):
    tools.write_file_content(FILE, TEXT)
    contains(tools.read_file_content(FILE), "second line: ü")
with step("list files"):
    contains(tools.list_files("/home/user"), FILE)
with step("delete"):
    equal(json.loads(tools.shutdown_sandbox())["status"], "success")
