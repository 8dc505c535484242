"""The same surface through the asynchronous Python SDK."""

import asyncio

import pytest
from conftest import needs_new_sdk
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    NotFoundException,
    PtySize,
    SandboxQuery,
    TimeoutException,
)

pytestmark = pytest.mark.asyncio


async def until(condition, seconds=15):
    async with asyncio.timeout(seconds) if hasattr(asyncio, "timeout") else _none():
        while not await condition():
            await asyncio.sleep(0.05)


class _none:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return False


@pytest.fixture
def make(server):
    made = []

    async def make(**kwargs):
        kwargs.setdefault("timeout", 60)
        sandbox = await AsyncSandbox.create(**kwargs)
        made.append(sandbox.sandbox_id)
        return sandbox

    yield make
    for left in made:
        server.ask("DELETE", f"/e2b/sandboxes/{left}", server.key)


async def test_a_life(make):
    sandbox = await make(metadata={"a": "b"})
    assert await sandbox.is_running()
    assert (await sandbox.get_info()).metadata == {"a": "b"}
    found = await AsyncSandbox.list(query=SandboxQuery(metadata={"a": "b"})).next_items()
    assert sandbox.sandbox_id in [each.sandbox_id for each in found]
    await sandbox.set_timeout(90)
    same = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert (await same.commands.run("echo hi")).stdout == "hi\n"
    assert await sandbox.get_metrics()
    assert await sandbox.kill() is True
    assert await sandbox.is_running() is False
    with pytest.raises(NotFoundException):
        await AsyncSandbox.get_info(sandbox.sandbox_id)


async def test_commands(make):
    sandbox = await make()
    with pytest.raises(CommandExitException):
        await sandbox.commands.run("exit 3")
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("sleep 50", timeout=1)
    seen = []
    done = await sandbox.commands.run("echo a; echo b >&2", on_stdout=seen.append, on_stderr=seen.append)
    assert (done.stdout, done.stderr, sorted(seen)) == ("a\n", "b\n", ["a\n", "b\n"])
    command = await sandbox.commands.run("cat", background=True, stdin=True)
    await sandbox.commands.send_stdin(command.pid, "x\n")
    assert command.pid in [process.pid for process in await sandbox.commands.list()]
    again = await sandbox.commands.connect(command.pid)
    assert again.pid == command.pid
    assert await sandbox.commands.kill(command.pid) is True


async def test_a_cancelled_task_leaves_its_process_running(make):
    sandbox = await make()
    task = asyncio.create_task(sandbox.commands.run("sleep 60"))

    async def started():
        return any("sleep 60" in process.args for process in await sandbox.commands.list())

    await until(started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await started()


async def test_many_commands_at_once(make):
    sandbox = await make()
    done = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(20)))
    assert [each.stdout for each in done] == [f"{number}\n" for number in range(20)]


async def test_a_terminal(make):
    sandbox = await make()
    seen = []
    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=seen.append)
    await sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=90))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    assert (await terminal.wait()).exit_code == 0
    assert b"40 90" in b"".join(seen)


async def test_files_and_a_watch(make):
    sandbox = await make()
    await sandbox.files.make_dir("w")
    seen = asyncio.Queue()
    watch = await sandbox.files.watch_dir("w", on_event=seen.put_nowait)
    await sandbox.files.write("w/a.txt", "text")
    events = []
    while ("a.txt", FilesystemEventType.WRITE) not in events:
        event = await asyncio.wait_for(seen.get(), 10)
        events.append((event.name, event.type))
    await watch.stop()
    assert await sandbox.files.read("w/a.txt") == "text"
    assert [each.name for each in await sandbox.files.list("w")] == ["a.txt"]
    assert (await sandbox.files.rename("w/a.txt", "w/b.txt")).name == "b.txt"
    await sandbox.files.remove("w")
    assert await sandbox.files.exists("w") is False


@needs_new_sdk
async def test_pause_and_connect(make):
    sandbox = await make()
    await sandbox.files.write("kept.txt", "kept")
    assert await sandbox.pause() is True
    assert await sandbox.is_running() is False
    await sandbox.connect(timeout=60)
    assert await sandbox.files.read("kept.txt") == "kept"


async def test_the_end_of_the_sandbox_is_told_to_a_running_command(make):
    sandbox = await make()
    task = asyncio.create_task(sandbox.commands.run("sleep 60"))

    async def started():
        return bool(await sandbox.commands.list())

    await until(started)
    await sandbox.kill()
    with pytest.raises(TimeoutException, match="sandbox was killed or reached its end of life"):
        await task
