"""The E2B SDK for Python, 1.0 and later: its constructor became `create`, its list became pages."""

from e2b import Sandbox
from e2b.sandbox.commands.command_handle import PtySize
from story import FILE, TEXT, contains, equal, step


def listed():
    found = Sandbox.list()
    entries = found.next_items() if hasattr(found, "next_items") else found
    return [entry.sandbox_id.split("-")[0] for entry in entries]


def exit_code(command):
    try:
        return sandbox.commands.run(command).exit_code
    except Exception as error:
        return getattr(error, "exit_code", error)


with step("create"):
    make = getattr(Sandbox, "create", None) or Sandbox
    sandbox = make(timeout=120, metadata={"made-by": "matrix"})
with step("command"):
    equal(sandbox.commands.run("echo hi").stdout, "hi\n")
    equal(exit_code("exit 3"), 3)
    equal(sandbox.commands.run("echo $WHO", envs={"WHO": "me"}).stdout, "me\n")
with step("background command"):
    handle = sandbox.commands.run("until [ -e /tmp/go ]; do sleep 0.05; done; echo late", background=True)
    contains([process.pid for process in sandbox.commands.list()], handle.pid)
    sandbox.commands.run("touch /tmp/go")
    equal(handle.wait().stdout, "late\n")
with step("leaves its session"):
    # A process group leader cannot: `setsid` would fork, and its caller would see exit code 0 at once.
    equal(exit_code("setsid sh -c 'sleep 0.3; exit 3'"), 3)
with step("write and read"):
    sandbox.files.write(FILE, TEXT)
    equal(sandbox.files.read(FILE), TEXT)
    equal(bytes(sandbox.files.read(FILE, format="bytes")), TEXT.encode())
with step("list files"):
    sandbox.files.make_dir("folder")
    names = sorted(entry.name for entry in sandbox.files.list("/home/user"))
    contains(names, FILE)
    contains(names, "folder")
    sandbox.files.remove(FILE)
    equal(sandbox.files.exists(FILE), False)
with step("terminal"):
    seen = []
    pty = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(pty.pid, b"echo $((6 * 7)); exit\n")
    pty.wait(on_pty=lambda data: seen.append(bytes(data)))
    contains(b"".join(seen), b"42")
with step("list"):
    contains(listed(), sandbox.sandbox_id.split("-")[0])
with step("connect"):
    again = Sandbox.connect(sandbox.sandbox_id)
    equal(again.commands.run("pwd").stdout, "/home/user\n")
    sandbox.set_timeout(90)
    equal(sandbox.is_running(), True)
with step("delete"):
    # 1.x returns nothing here.
    contains((True, None), sandbox.kill())
    equal(sandbox.sandbox_id.split("-")[0] in listed(), False)
