"""Packages that stand on the SDK: langchain-daytona and deepagents."""

import os

import langchain_daytona
import pytest


@pytest.fixture
def backend(daytona):
    sandbox = daytona.create()
    yield langchain_daytona.DaytonaSandbox(sandbox=sandbox)
    daytona.delete(sandbox)


def test_langchain_executes_uploads_and_downloads(backend):
    done = backend.execute("echo hello; echo bad >&2; exit 3")
    assert done.exit_code == 3 and "hello" in done.output and "bad" in done.output
    path = f"/tmp/{os.urandom(4).hex()}/a.txt"
    assert [one.error for one in backend.upload_files([(path, b"carried")])] == [None]
    got = backend.download_files([path, "/tmp/nosuch"])
    assert got[0].content == b"carried"
    assert got[1].error == "file_not_found"


def test_deepagents_works_with_the_files_of_a_sandbox(backend):
    written = backend.write("/tmp/agent/notes.md", "alpha\nbeta\n")
    assert written.error is None, written
    assert "beta" in str(backend.read("/tmp/agent/notes.md"))
    edited = backend.edit("/tmp/agent/notes.md", "beta", "gamma")
    assert edited.error is None, edited
    assert "gamma" in backend.execute("cat /tmp/agent/notes.md").output
    assert "notes.md" in str(backend.ls("/tmp/agent"))
    assert "notes.md" in str(backend.glob("*.md", "/tmp/agent"))
    assert "gamma" in str(backend.grep("gamma", "/tmp/agent"))
