"""The sandboxes of Pydantic AI's harness, through its own workspace protocol."""

import asyncio
import os

from pydantic_ai.workspaces import WorkspaceTimeoutError
from story import FILE, TEXT, contains, equal, step

if "DAYTONA_API_URL" in os.environ:
    from pydantic_ai_harness.daytona_sandbox import DaytonaSandbox as Sandbox
    from pydantic_ai_harness.daytona_sandbox import DaytonaSandboxBackend as Backend
else:
    from pydantic_ai_harness.e2b_sandbox import E2BSandbox as Sandbox
    from pydantic_ai_harness.e2b_sandbox import E2BSandboxBackend as Backend


async def timed_out(workspace):
    try:
        await workspace.run("sleep 30", shell=True, timeout=1)
    except WorkspaceTimeoutError:
        return True
    return False


async def story():
    with step("create"):
        sandbox, workspace = Sandbox(), Backend()
        await workspace.get_sandbox()
        here = await workspace.working_dir()
    with step("command"):
        equal((await workspace.run(["echo", "hi"])).stdout, "hi\n")
        equal((await workspace.run("exit 3", shell=True)).exit_code, 3)
        equal(await timed_out(workspace), True)
    with step("write and read"):
        await workspace.write_bytes(f"{here}/{FILE}", TEXT.encode())
        equal(await workspace.read_bytes(f"{here}/{FILE}"), TEXT.encode())
    with step("list files"):
        await workspace.make_dir(f"{here}/folder")
        await workspace.run(["ln", "-s", "loop", "loop"])
        await workspace.run(["ln", "-s", "folder", "link"])
        kinds = {entry.name: entry.is_dir for entry in await workspace.list_dir(here)}
        wanted = {FILE: False, "folder": True, "loop": False, "link": True}
        equal({name: kinds.get(name) for name in wanted}, wanted)
        await workspace.remove(f"{here}/loop")
    with step("errors"):
        for call, wanted in (
            (workspace.read_bytes(f"{here}/absent"), FileNotFoundError),
            (workspace.read_bytes(f"{here}/folder"), IsADirectoryError),
            (workspace.make_dir(f"{here}/{FILE}"), FileExistsError),
            (workspace.list_dir(f"{here}/{FILE}"), NotADirectoryError),
        ):
            try:
                await call
                seen = None
            except Exception as error:
                seen = type(error)
            equal(seen, wanted)
    with step("attach"):
        again = sandbox.backend(workspace.ref)
        contains((await again.run(["ls", here])).stdout, FILE)
    with step("delete"):
        await sandbox.destroy(workspace.ref)


asyncio.run(story())
