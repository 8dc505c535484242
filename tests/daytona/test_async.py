"""The asynchronous client does the same."""

import asyncio

import pytest
from conftest import printed
from daytona import AsyncDaytona, PtySize, SessionExecuteRequest


async def test_from_the_first_call_to_the_last(server):
    async with AsyncDaytona() as daytona:
        sandbox = await daytona.create()
        try:
            assert printed(await sandbox.process.exec("echo hello")) == "hello\n"
            assert printed(await sandbox.process.code_run("print(6 * 7)")) == "42\n"
            await sandbox.fs.upload_file(b"bytes", "in/a.txt")
            assert await sandbox.fs.download_file("in/a.txt") == b"bytes"
            assert [entry.name for entry in await sandbox.fs.list_files("in")] == ["a.txt"]

            await sandbox.process.create_session("s")
            started = await sandbox.process.execute_session_command(
                "s", SessionExecuteRequest(command="echo one; sleep 0.2; echo two >&2", run_async=True)
            )
            out, err = [], []
            await asyncio.wait_for(
                sandbox.process.get_session_command_logs_async("s", started.cmd_id, out.append, err.append), 20
            )
            assert ("".join(out), "".join(err)) == ("one\n", "two\n")
            await sandbox.process.delete_session("s")

            seen = []
            terminal = await sandbox.process.create_pty_session(
                id="t", on_data=lambda data: seen.append(data), pty_size=PtySize(rows=20, cols=70)
            )
            await terminal.wait_for_connection()
            await terminal.send_input("stty size; exit 4\n")
            await asyncio.wait_for(terminal.wait(), 20)
            assert terminal.exit_code == 4 and b"20 70" in b"".join(seen)

            done = await sandbox.code_interpreter.run_code("x = 2\nprint(x ** 10)")
            assert done.stdout == "1024\n"
            await sandbox.stop()
            await sandbox.start()
            assert await sandbox.fs.download_file("in/a.txt") == b"bytes"
        finally:
            await daytona.delete(sandbox)
        with pytest.raises(Exception, match="not exist"):
            await daytona.get(sandbox.id)


async def test_many_at_once(server):
    async with AsyncDaytona() as daytona:
        made = await asyncio.gather(*[daytona.create() for _ in range(5)])
        try:
            answers = await asyncio.gather(*[one.process.exec(f"echo {number}") for number, one in enumerate(made)])
            assert [printed(answer) for answer in answers] == [f"{number}\n" for number in range(5)]
        finally:
            await asyncio.gather(*[daytona.delete(one) for one in made])
