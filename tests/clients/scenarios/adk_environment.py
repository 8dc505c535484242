"""The sandboxes of Google's ADK itself."""

import asyncio
import os

from story import FILE, TEXT, equal, step

if "DAYTONA_API_URL" in os.environ:
    from google.adk.integrations.daytona import DaytonaEnvironment as Environment

    options = {"api_url": os.environ["DAYTONA_API_URL"]}
else:
    from google.adk.integrations.e2b import E2BEnvironment as Environment

    options = {}


async def story():
    with step("create"):
        environment = Environment(timeout=120, **options)
        await environment.initialize()
    with step("command"):
        equal((await environment.execute("echo hi")).stdout.strip(), "hi")
        equal((await environment.execute("exit 3")).exit_code, 3)
    with step("write and read"):
        await environment.write_file(FILE, TEXT)
        equal(await environment.read_file(FILE), TEXT.encode())
    with step("delete"):
        await environment.close()


asyncio.run(story())
