"""The Daytona SDK for Python, under its first name `daytona_sdk` and its later one, as its calls were named at the time."""

import inspect

try:
    import daytona_sdk as sdk
except ImportError:
    import daytona as sdk

from story import FILE, TEXT, contains, equal, step

daytona = sdk.Daytona()
FOLDER = "/tmp/matrix"


def listed():
    found = daytona.list()
    return [sandbox.id for sandbox in getattr(found, "items", found)]


def upload(text, path):
    """The order of the two arguments changed."""
    first = next(iter(inspect.signature(sandbox.fs.upload_file).parameters))
    if first in ("path", "remote_path"):
        sandbox.fs.upload_file(path, text.encode())
    else:
        sandbox.fs.upload_file(text.encode(), path)


with step("create"):
    sandbox = daytona.create()
with step("command"):
    equal(sandbox.process.exec("echo hi").result.rstrip("\n"), "hi")
    equal(sandbox.process.exec("exit 3").exit_code, 3)
with step("code"):
    equal(sandbox.process.code_run("print(6 * 7)").result.rstrip("\n"), "42")
with step("session"):
    sandbox.process.create_session("s1")
    request = sdk.SessionExecuteRequest
    sandbox.process.execute_session_command("s1", request(command="cd /tmp; export WHO=me"))
    told = sandbox.process.execute_session_command("s1", request(command="echo $PWD $WHO"))
    contains(told.output, "/tmp me")
    sandbox.process.delete_session("s1")
with step("write and read"):
    sandbox.fs.create_folder(FOLDER, "755")
    upload(TEXT, f"{FOLDER}/{FILE}")
    equal(sandbox.fs.download_file(f"{FOLDER}/{FILE}").decode(), TEXT)
with step("list files"):
    contains([entry.name for entry in sandbox.fs.list_files(FOLDER)], FILE)
    contains([match.file for match in sandbox.fs.find_files(FOLDER, "second")], f"{FOLDER}/{FILE}")
    sandbox.fs.delete_file(f"{FOLDER}/{FILE}")
    equal([entry.name for entry in sandbox.fs.list_files(FOLDER)], [])
with step("list"):
    contains(listed(), sandbox.id)
with step("get"):
    find = getattr(daytona, "get", None) or daytona.get_current_sandbox
    equal(find(sandbox.id).id, sandbox.id)
with step("preview link"):
    contains(sandbox.get_preview_link(3000).url, sandbox.id)
with step("stop and start"):
    daytona.stop(sandbox)
    daytona.start(sandbox)
    equal(sandbox.process.exec("echo back").result.rstrip("\n"), "back")
with step("delete"):
    end = getattr(daytona, "delete", None) or daytona.remove
    end(sandbox)
    equal(sandbox.id in listed(), False)
