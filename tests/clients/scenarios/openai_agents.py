"""The sandboxes of the OpenAI Agents SDK: its client makes a session, as its runner does."""

import asyncio
import io
import os
import pathlib

from story import FILE, TEXT, contains, equal, step

if "DAYTONA_API_URL" in os.environ:
    from agents.extensions.sandbox.daytona import DaytonaSandboxClient as Client
    from agents.extensions.sandbox.daytona import DaytonaSandboxClientOptions as Options

    options = {}
else:
    from agents.extensions.sandbox.e2b import E2BSandboxClient as Client
    from agents.extensions.sandbox.e2b import E2BSandboxClientOptions as Options

    options = {"sandbox_type": "e2b", "timeout": 120}


async def story():
    client = Client()
    with step("create"):
        session = await client.create(options=Options(**options))
        await session.start()
    with step("command"):
        told = await session.exec("echo", "hi")
        equal(told.stdout, b"hi\n")
        equal((await session.exec("exit 3")).exit_code, 3)
    with step("write and read"):
        await session.write(pathlib.Path(FILE), io.BytesIO(TEXT.encode()))
        equal((await session.read(pathlib.Path(FILE))).read(), TEXT.encode())
    with step("list files"):
        contains(str(await session.ls(".")), FILE)
    with step("save and restore"):
        saved = await session.persist_workspace()
        await session.rm(pathlib.Path(FILE))
        await session.hydrate_workspace(saved)
        equal((await session.read(pathlib.Path(FILE))).read(), TEXT.encode())
    with step("terminal"):
        told = await session.pty_exec_start("echo $((6 * 7))", tty=True)
        contains(str(told), "42")
    with step("delete"):
        await session.stop()
        await session.shutdown()
        await client.delete(session)


asyncio.run(story())
