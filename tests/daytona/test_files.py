"""Files go in and out byte for byte, and the rest of what can be done with them."""

import io
import os

import pytest
from conftest import SDK, needs_newest_sdk
from daytona import FileDownloadRequest, FileUpload

EVERY_BYTE = bytes(range(256))


@pytest.fixture
def folder(sandbox):
    name = f"files-{os.urandom(4).hex()}"
    sandbox.fs.create_folder(name, "755")
    yield name
    sandbox.fs.delete_file(name, recursive=True)


def test_bytes_come_back_as_they_went(sandbox, folder):
    # Older SDKs lose letters beyond ASCII when they read a download's name.
    name = "all bytes ä.bin" if SDK >= (0, 220) else "all bytes.bin"
    sandbox.fs.upload_file(EVERY_BYTE, f"{folder}/{name}")
    assert sandbox.fs.download_file(f"{folder}/{name}") == EVERY_BYTE
    sandbox.fs.upload_file(b"", f"{folder}/empty")
    assert sandbox.fs.download_file(f"{folder}/empty") == b""


def test_a_large_file_goes_through(sandbox, folder, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(os.urandom(1 << 20) * 20)
    sandbox.fs.upload_file(str(source), f"{folder}/large")
    sandbox.fs.download_file(f"{folder}/large", str(target))
    assert target.read_bytes() == source.read_bytes()


def test_many_files_in_one_call_and_one_that_is_not_there(sandbox, folder):
    sandbox.fs.upload_files(
        [FileUpload(source=b"one", destination=f"{folder}/1"), FileUpload(source=b"two", destination=f"{folder}/new/2")]
    )
    wanted = [f"{folder}/1", f"{folder}/nosuch", f"{folder}/new/2"]
    got = sandbox.fs.download_files([FileDownloadRequest(source=path) for path in wanted])
    assert [one.result for one in got] == [b"one", None, b"two"]
    assert "not found" in got[1].error


def test_a_file_that_cannot_be_read_is_an_error_by_name(sandbox, folder):
    with pytest.raises(Exception, match="not found"):
        sandbox.fs.download_file(f"{folder}/nosuch")
    with pytest.raises(Exception, match="not found"):
        sandbox.fs.get_file_info(f"{folder}/nosuch")
    made = sandbox.process.exec(f"echo secret | sudo install -m 600 /dev/stdin {folder}/locked")
    assert made.exit_code == 0, made.result
    with pytest.raises(Exception, match="(?i)permission denied"):
        sandbox.fs.download_file(f"{folder}/locked")


def test_listing_and_looking(sandbox, folder):
    sandbox.fs.upload_file(b"12345", f"{folder}/five")
    sandbox.fs.create_folder(f"{folder}/inner", "700")
    assert sorted(entry.name for entry in sandbox.fs.list_files(folder)) == ["five", "inner"]
    five = sandbox.fs.get_file_info(f"{folder}/five")
    assert (five.size, five.is_dir, five.permissions, five.mode) == (5, False, "0644", "-rw-r--r--")
    inner = sandbox.fs.get_file_info(f"{folder}/inner")
    assert (inner.is_dir, inner.permissions) == (True, "0700")


def test_permissions_moving_and_removing(sandbox, folder):
    sandbox.fs.upload_file(b"x", f"{folder}/a")
    sandbox.fs.set_file_permissions(f"{folder}/a", mode="600")
    assert sandbox.fs.get_file_info(f"{folder}/a").permissions == "0600"
    sandbox.fs.set_file_permissions(f"{folder}/a", mode="640", owner="daytona", group="daytona")
    assert sandbox.process.exec(f"stat -c '%a %U %G' {folder}/a").result.split() == ["640", "daytona", "daytona"]
    sandbox.fs.move_files(f"{folder}/a", f"{folder}/b")
    assert sandbox.fs.download_file(f"{folder}/b") == b"x"
    sandbox.fs.upload_file(b"y", f"{folder}/c")
    with pytest.raises(Exception, match="already exists"):
        sandbox.fs.move_files(f"{folder}/b", f"{folder}/c")
    sandbox.fs.delete_file(f"{folder}/b")
    assert [entry.name for entry in sandbox.fs.list_files(folder)] == ["c"]
    with pytest.raises(Exception, match="directory"):
        sandbox.fs.delete_file(folder)


def test_searching_finding_replacing(sandbox, folder):
    sandbox.fs.upload_file(b"first\nthe needle here\n", f"{folder}/hay.txt")
    sandbox.fs.upload_file(b"nothing", f"{folder}/other.md")
    matches = sandbox.fs.find_files(folder, "needle")
    assert [(match.line, match.content) for match in matches] == [(2, "the needle here")]
    found = sandbox.fs.search_files(folder, "*.txt").files
    assert [path.rsplit("/", 1)[1] for path in found] == ["hay.txt"]
    done = sandbox.fs.replace_in_files([f"{folder}/hay.txt", f"{folder}/nosuch"], "needle", "thread")
    assert [one.success for one in done] == [True, False]
    assert b"the thread here" in sandbox.fs.download_file(f"{folder}/hay.txt")


@needs_newest_sdk
def test_streams_with_progress(sandbox, folder):
    data, sent, received = os.urandom(300_000), [], []
    sandbox.fs.upload_file_stream(io.BytesIO(data), f"{folder}/s", on_progress=sent.append)
    got = b"".join(sandbox.fs.download_file_stream(f"{folder}/s", on_progress=received.append))
    assert got == data
    assert sent[-1].bytes_sent == len(data)
    assert (received[-1].bytes_received, received[-1].total_bytes) == (len(data), len(data))


@needs_newest_sdk
def test_a_signed_url_opens_one_file_and_dies_with_its_key(server, sandbox, folder):
    sandbox.fs.upload_file(b"signed", f"{folder}/signed.txt")
    url = sandbox.download_url(f"{folder}/signed.txt")
    assert server.ask("GET", url) == (200, b"signed")
    assert server.ask("GET", url.replace("signed.txt", "other.txt"))[0] == 401
    upload = sandbox.upload_url(f"{folder}/up.txt")
    assert server.ask("POST", upload, body=b"raw body")[0] == 200
    assert sandbox.fs.download_file(f"{folder}/up.txt") == b"raw body"
    sandbox.rotate_signing_key()
    assert server.ask("GET", url)[0] == 401


def test_a_listing_follows_links_and_leaves_out_those_that_lead_nowhere(sandbox):
    sandbox.process.exec(
        "mkdir -p /tmp/links/real && cd /tmp/links && echo 12345 > real/file && ln -s real folder && ln -s real/file link"
        " && ln -s nowhere dangling && ln -s circle circle"
    )
    listed = {entry.name: entry for entry in sandbox.fs.list_files("/tmp/links")}
    assert sorted(listed) == ["folder", "link", "real"]
    assert listed["folder"].is_dir and not listed["link"].is_dir
    assert listed["link"].size == 6
