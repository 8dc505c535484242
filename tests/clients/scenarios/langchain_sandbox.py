"""LangChain's E2B and Daytona sandboxes for deep agents, through deepagents' own file tools."""

import os

from story import FILE, TEXT, contains, equal, step

PATH = f"/tmp/{FILE}"


def made():
    if "DAYTONA_API_URL" in os.environ:
        from daytona import Daytona
        from langchain_daytona import DaytonaSandbox

        daytona = Daytona()
        inner = daytona.create()
        return DaytonaSandbox(sandbox=inner), lambda: daytona.delete(inner)
    from e2b import Sandbox
    from langchain_e2b import E2BSandbox

    inner = Sandbox.create(timeout=120)
    return E2BSandbox(sandbox=inner), inner.kill


def text_of(answer):
    """What a file tool told, as text: its shape differs between versions."""
    return str(getattr(answer, "__dict__", answer))


with step("create"):
    sandbox, end = made()
with step("command"):
    told = sandbox.execute("echo hi; exit 3")
    contains(told.output, "hi")
    equal(told.exit_code, 3)
with step("write and read"):
    sandbox.write(PATH, TEXT)
    contains(text_of(sandbox.read(PATH)), "second line: ü")
    equal(sandbox.download_files([PATH])[0].content, TEXT.encode())
    sandbox.upload_files([("/tmp/other.bin", b"\x00\xff")])
    equal(sandbox.download_files(["/tmp/other.bin"])[0].content, b"\x00\xff")
with step("edit"):
    sandbox.edit(PATH, "second line", "line two")
    contains(text_of(sandbox.read(PATH)), "line two")
with step("list files"):
    listing = getattr(sandbox, "ls", None) or sandbox.ls_info
    contains(text_of(listing("/tmp")), FILE)
    search = getattr(sandbox, "grep", None) or sandbox.grep_raw
    contains(text_of(search("line two", "/tmp")), FILE)
with step("delete"):
    end()
