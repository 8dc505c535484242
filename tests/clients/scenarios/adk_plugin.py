"""The vendors' plugins for Google's ADK: their tools, called as the agent calls them."""

import asyncio
import os

from story import FILE, TEXT, contains, equal, step

daytona = "DAYTONA_API_URL" in os.environ
if daytona:
    from daytona_adk import DaytonaPlugin as Plugin

    NAMES = {
        "code": ("execute_code_in_daytona", {"code": "print(6 * 7)"}),
        "command": ("execute_command_in_daytona", {"command": "echo hi"}),
        "write": ("upload_file_to_daytona", {"file_path": f"/tmp/{FILE}", "content": TEXT}),
        "read": ("read_file_from_daytona", {"file_path": f"/tmp/{FILE}"}),
    }
else:
    from e2b_adk import E2BPlugin as Plugin

    NAMES = {
        "code": ("run_code", {"code": "6 * 7"}),
        "command": ("run_command", {"command": "echo hi"}),
        "write": ("write_file", {"path": f"/tmp/{FILE}", "content": TEXT}),
        "read": ("read_file", {"path": f"/tmp/{FILE}"}),
        "files": ("list_files", {"path": "/tmp"}),
    }


async def story():
    async def call(what):
        name, arguments = NAMES[what]
        return await tools[name].run_async(args=arguments, tool_context=None)

    with step("create"):
        plugin = Plugin()
        tools = {tool.name: tool for tool in plugin.get_tools()}
        contains(str(await call("command")), "hi")
    with step("code"):
        contains(str(await call("code")), "42")
    with step("write and read"):
        await call("write")
        equal((await call("read"))["content"], TEXT)
    if "files" in NAMES:
        with step("list files"):
            contains(str(await call("files")), FILE)
    with step("delete"):
        await plugin.close()


asyncio.run(story())
