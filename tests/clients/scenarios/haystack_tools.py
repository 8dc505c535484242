"""Haystack's E2B toolset, its tools invoked as its agent does."""

from haystack_integrations.tools.e2b import E2BToolset
from story import FILE, TEXT, contains, equal, step

with step("create"):
    toolset = E2BToolset()
    toolset.warm_up()
    tools = {tool.name: tool for tool in toolset}
with step("command"):
    contains(tools["run_bash_command"].invoke(command="echo hi"), "hi")
    contains(tools["run_bash_command"].invoke(command="exit 3"), "3")
with step("write and read"):
    tools["write_file"].invoke(path=FILE, content=TEXT)
    equal(tools["read_file"].invoke(path=FILE), TEXT)
with step("list files"):
    contains(tools["list_directory"].invoke(path="/home/user"), FILE)
with step("delete"):
    toolset.close()
