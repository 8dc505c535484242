"""Daytona's own capability for Pydantic AI: the session behind its tools."""

import asyncio

from pydantic_ai_daytona._session import DaytonaSandboxSession
from story import FILE, TEXT, contains, equal, step


async def story():
    session = DaytonaSandboxSession()
    with step("create"):
        await session.__aenter__()
    with step("command"):
        told = await session.exec("echo hi; echo bad >&2; exit 3", timeout=20)
        equal((told.stdout, told.stderr, told.exit_code), ("hi\n", "bad\n", 3))
    with step("write and read"):
        await session.write_bytes(FILE, TEXT.encode())
        equal(await session.read_bytes(FILE), TEXT.encode())
    with step("list files"):
        contains(await session.list_entries("."), (FILE, False))
    with step("delete"):
        await session.__aexit__(None, None, None)


asyncio.run(story())
