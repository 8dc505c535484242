"""One program of the SDK on servers whose sandboxes are elsewhere: everywhere the same results."""

import contextlib
import pathlib
import tempfile

import pytest
from conftest import Server, wait_for
from docker import Docker, root_of
from e2b import CommandExitException, NotFoundException, PtySize, Sandbox

PROGRAMS = ["bash", "cat", "echo", "head", "id", "ls", "mkdir", "printenv", "rm", "seq", "sh", "sleep", "stat", "true", "wc"]


@contextlib.contextmanager
def serving(place, name, settings=""):
    folder = place / name
    folder.mkdir()
    (folder / "cove.toml").write_text(settings)
    server = Server(folder, "--config", str(folder / "cove.toml"))
    try:
        yield server
    finally:
        for left in server.ask("GET", "/api/sandboxes", server.key)[1]["items"]:
            server.ask("DELETE", f"/api/sandboxes/{left['id']}", server.key)
        server.leave()


@pytest.fixture(scope="module")
def place():
    """A folder with a short name: sockets are in it, whose paths the kernel limits."""
    with tempfile.TemporaryDirectory(prefix="cove-p-", ignore_cleanup_errors=True) as folder:
        pathlib.Path(folder).chmod(0o755)
        yield pathlib.Path(folder)


@pytest.fixture(scope="module")
def local(place):
    with serving(place, "local") as server:
        yield server


@pytest.fixture(scope="module")
def docker(place):
    one = Docker(place / "docker")
    try:
        one("import", "--change", "ENV PATH=/usr/bin:/bin", "-", "cove-test/programs:1", input=root_of(*PROGRAMS))
        settings = f"""
provider = "docker"
[providers.docker]
kind = "docker"
host = "{one.host}"
image = "cove-test/programs:1"
"""
        with serving(place, "on-docker", settings) as server:
            yield server
    finally:
        one.end()


@pytest.fixture(scope="module")
def daytona(place, local):
    settings = f"""
provider = "daytona"
[providers.daytona]
kind = "daytona"
url = "{local.url}/daytona/api"
api_key = "{local.key}"
"""
    with serving(place, "on-daytona", settings) as server:
        yield server


def program(server):
    """What a program of the SDK does, and all that it sees."""
    options = {"api_key": server.key, "api_url": f"{server.url}/e2b", "sandbox_url": f"{server.url}/e2b"}
    sandbox = Sandbox.create(timeout=120, envs={"GREETING": "good day"}, metadata={"of": "a program"}, **options)
    try:
        return dict(everything(sandbox, options))
    finally:
        sandbox.kill()


def everything(sandbox, options):
    done = sandbox.commands.run("echo out; echo err >&2; printenv GREETING; id -un; pwd")
    yield "command", (done.stdout, done.stderr, done.exit_code)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo before; exit 3")
    yield "failure", (failed.value.stdout, failed.value.exit_code)
    yield "much", len(sandbox.commands.run("seq 1 100000").stdout)
    yield "root", sandbox.commands.run("id -u", user="root", cwd="/tmp").stdout

    blob = bytes(range(256)) * 3000
    sandbox.files.write("deep/er/file.bin", blob)
    yield "file", bytes(sandbox.files.read("deep/er/file.bin", format="bytes")) == blob
    info = sandbox.files.get_info("deep/er/file.bin")
    yield "info", (info.owner, info.group, info.mode, info.size, info.path)
    sandbox.files.rename("deep/er/file.bin", "deep/moved.bin")
    yield "list", sorted((entry.name, str(entry.type)) for entry in sandbox.files.list("deep", depth=2))
    sandbox.files.remove("deep")
    yield "gone", sandbox.files.exists("deep")
    with pytest.raises(NotFoundException):
        sandbox.files.read("deep/moved.bin")

    sandbox.files.make_dir("watched")
    watch, seen = sandbox.files.watch_dir("watched"), []
    sandbox.files.write("watched/new", "new")
    wait_for(lambda: seen.extend(event.name for event in watch.get_new_events()) or "new" in seen, 15, "word of a file")
    watch.stop()

    command = sandbox.commands.run("cat; echo ended", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "typed\n")
    yield "processes", [(process.cmd, process.args) for process in sandbox.commands.list()]
    again = Sandbox.connect(sandbox.sandbox_id, timeout=120, **options)
    yield "found again", (again.is_running(), again.get_info().metadata)
    yield "kill", (again.commands.kill(command.pid), again.commands.kill(command.pid))

    heard = []
    terminal = sandbox.pty.create(PtySize(24, 80))
    sandbox.pty.send_stdin(terminal.pid, b"echo $((6*7)); exit\n")
    terminal.wait(on_pty=lambda data: heard.append(data))
    yield "terminal", b"\r\n42\r\n" in b"".join(heard) or b"\r42\r\n" in b"".join(heard)


def test_a_program_sees_the_same_on_docker(local, docker):
    assert program(docker) == program(local)


def test_a_program_sees_the_same_on_daytona(local, daytona):
    assert program(daytona) == program(local)
    # It was there that it ran: nothing is left of it.
    assert local.ask("GET", "/api/sandboxes", local.key)[1]["items"] == []
