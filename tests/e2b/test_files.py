"""Files, watches and signed links through the synchronous Python SDK."""

import gzip
import io
import urllib.error
import urllib.request
from importlib.metadata import version

import pytest
from conftest import needs_new_sdk, wait_for
from e2b import FileType, FilesystemEventType, InvalidArgumentException, NotFoundException, SandboxException


def test_text_and_bytes_come_back_as_written(sandbox):
    sandbox.files.write("a.txt", "hello ř\n")
    assert sandbox.files.read("a.txt") == "hello ř\n"
    assert sandbox.files.read("/home/user/a.txt") == "hello ř\n"
    assert sandbox.files.read("~/a.txt") == "hello ř\n"
    blob = bytes(range(256)) * 5000
    sandbox.files.write("b.bin", blob)
    assert bytes(sandbox.files.read("b.bin", format="bytes")) == blob
    assert b"".join(sandbox.files.read("b.bin", format="stream")) == blob


def test_a_file_object_is_streamed(sandbox):
    blob = b"0123456789abcdef" * 100_000
    sandbox.files.write("c.bin", io.BytesIO(blob))
    assert bytes(sandbox.files.read("c.bin", format="bytes")) == blob


@needs_new_sdk
def test_compressed_both_ways(sandbox):
    text = "a line of text\n" * 10_000
    sandbox.files.write("z.txt", text, gzip=True)
    assert sandbox.files.read("z.txt") == text
    assert sandbox.files.read("z.txt", gzip=True) == text


def test_many_files_in_one_call(sandbox):
    written = sandbox.files.write_files(
        [{"path": "many/one 1.txt", "data": "1"}, {"path": "/tmp/deep/er/two.txt", "data": b"2"}]
    )
    assert [each.path for each in written] == ["/home/user/many/one 1.txt", "/tmp/deep/er/two.txt"]
    assert sandbox.files.read("many/one 1.txt") + sandbox.files.read("/tmp/deep/er/two.txt") == "12"


def test_files_belong_to_who_wrote_them_wherever_they_are(sandbox):
    sandbox.files.write("/app/src/main.py", "print(1)")
    info = sandbox.files.get_info("/app/src/main.py")
    assert (info.owner, info.group, info.mode, info.permissions) == ("user", "user", 0o644, "-rw-r--r--")
    assert sandbox.files.get_info("/app").owner == "user"
    sandbox.files.write("/root/x.txt", "x", user="root")
    assert sandbox.files.get_info("/root/x.txt").owner == "root"
    assert sandbox.files.read("x.txt", user="root") == "x"
    sandbox.commands.run("echo more >> /app/src/main.py")


def test_directories_are_made_listed_and_removed(sandbox):
    assert sandbox.files.make_dir("d/e/f") is True
    assert sandbox.files.make_dir("d/e/f") is False
    sandbox.files.write("d/a.txt", "a")
    names = [(each.name, each.type) for each in sandbox.files.list("d")]
    assert sorted(names, key=lambda pair: pair[0]) == [("a.txt", FileType.FILE), ("e", FileType.DIR)]
    deep = [each.path for each in sandbox.files.list("d", depth=3)]
    assert "/home/user/d/e/f" in deep
    sandbox.files.remove("d")
    assert sandbox.files.exists("d") is False
    with pytest.raises(NotFoundException):
        sandbox.files.list("d")


def test_a_file_in_the_way_of_a_directory_is_told(sandbox):
    sandbox.files.write("plain", "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.make_dir("plain")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        sandbox.files.list("plain")
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        sandbox.files.read("/tmp")


def test_rename_moves_and_reports(sandbox):
    sandbox.files.write("old.txt", "x")
    moved = sandbox.files.rename("old.txt", "sub/new.txt")
    assert (moved.name, moved.path) == ("new.txt", "/home/user/sub/new.txt")
    assert sandbox.files.exists("old.txt") is False
    with pytest.raises(NotFoundException):
        sandbox.files.rename("old.txt", "other.txt")


def test_links_report_what_they_lead_to(sandbox):
    sandbox.files.write("target.txt", "x")
    sandbox.commands.run("ln -s target.txt link.txt")
    info = sandbox.files.get_info("link.txt")
    assert (info.type, info.symlink_target) == (FileType.FILE, "/home/user/target.txt")
    assert sandbox.files.read("link.txt") == "x"


def test_what_is_not_there_is_told(sandbox):
    for call in (sandbox.files.read, sandbox.files.get_info, sandbox.files.list):
        with pytest.raises(NotFoundException):
            call("nowhere.txt")
    sandbox.files.remove("nowhere.txt")


@needs_new_sdk
def test_words_pinned_to_a_file_are_found_again(sandbox):
    written = sandbox.files.write("m.txt", "x", metadata={"Author": "me"})
    assert written.metadata == {"author": "me"}
    assert sandbox.files.get_info("m.txt").metadata == {"author": "me"}
    listed = {entry.name: entry.metadata for entry in sandbox.files.list("~")}
    assert listed["m.txt"] == {"author": "me"}
    sandbox.files.write("m.txt", "y")
    assert not sandbox.files.get_info("m.txt").metadata


def test_a_watch_sees_what_happens(sandbox):
    sandbox.files.make_dir("w")
    watch = sandbox.files.watch_dir("w", recursive=True)
    sandbox.files.write("w/new.txt", "x")
    sandbox.commands.run("mkdir w/sub && sleep 0.2 && echo y > w/sub/deep.txt && rm w/new.txt")
    seen = []

    def all_seen():
        seen.extend((event.name, event.type) for event in watch.get_new_events())
        wanted = {
            ("new.txt", FilesystemEventType.CREATE),
            ("sub/deep.txt", FilesystemEventType.WRITE),
            ("new.txt", FilesystemEventType.REMOVE),
        }
        return wanted <= set(seen)

    wait_for(all_seen, 10, f"all events, only {seen}")
    watch.stop()
    with pytest.raises(SandboxException, match="already stopped"):
        watch.get_new_events()


def test_a_watch_needs_a_directory(sandbox):
    sandbox.files.write("plain", "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.watch_dir("plain")
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("nowhere")


def fetch(url, data=None, headers=None):
    request = urllib.request.Request(url, data=data, headers=headers or {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.status, answer.read(), answer.headers


def test_signed_links_open_one_file(server, create):
    sandbox = create(secure=True)
    sandbox.files.write("signed.txt", "secret")
    link = sandbox.download_url("signed.txt")
    assert fetch(link)[1] == b"secret"
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(link.replace("signed.txt", "other.txt"))
    assert refused.value.code == 401
    expired = sandbox.download_url("signed.txt", use_signature_expiration=-100)
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(expired)
    assert b"signature is already expired" in refused.value.read()
    late = sandbox.upload_url("late.txt", use_signature_expiration=-100)
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(late, b"body", {"Content-Type": "application/octet-stream"})
    assert b"signature is already expired" in refused.value.read()
    assert not sandbox.files.exists("late.txt")
    assert fetch(sandbox.download_url("signed.txt", use_signature_expiration=60))[1] == b"secret"
    upload = sandbox.upload_url("up.txt")
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="up.txt"\r\n\r\nbody\r\n--x--\r\n'
    status, told, _ = fetch(upload, form, {"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 200 and b"/home/user/up.txt" in told
    assert sandbox.files.read("up.txt") == "body"


def test_parts_of_a_file(server, sandbox):
    sandbox.files.write("r.txt", "0123456789")
    link = sandbox.download_url("r.txt")
    status, body, headers = fetch(link, headers={"Range": "bytes=2-4"})
    assert (status, body, headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(link, headers={"Range": "bytes=50-"})
    assert refused.value.code == 416
    _, body, headers = fetch(link, headers={"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and gzip.decompress(body) == b"0123456789"


LEAVES_OUT_THE_UNTYPED = tuple(map(int, version("e2b").split(".")[:2])) <= (2, 30)


def test_one_link_in_a_circle_does_not_break_a_listing(sandbox):
    sandbox.commands.run("mkdir circle && cd circle && ln -s a b && ln -s b a && ln -s self self && ln -s /etc/passwd/x odd && echo 1 > file")
    listed = {entry.name: entry for entry in sandbox.files.list("circle")}
    # Earlier SDKs leave out what has no type of its own.
    untyped = [] if LEAVES_OUT_THE_UNTYPED else ["a", "b", "odd", "self"]
    assert sorted(listed) == sorted(["file", *untyped])
    assert listed["file"].type == FileType.FILE
    assert sandbox.files.get_info("circle/self").symlink_target == "/home/user/circle/self"


def test_a_directory_over_a_file_is_refused_in_the_originals_words(sandbox):
    sandbox.files.write("plain", "x")
    for path in ("plain", "plain/below"):
        with pytest.raises(InvalidArgumentException, match="already exists but it is not a directory|is not a directory"):
            sandbox.files.make_dir(path)
    with pytest.raises(InvalidArgumentException, match="path already exists but it is not a directory"):
        sandbox.files.make_dir("plain")


def test_an_unknown_user_is_told_alike_whatever_is_asked(sandbox):
    from e2b import AuthenticationException

    calls = {
        "list": lambda: sandbox.files.list("/tmp", user="bob"),
        "info": lambda: sandbox.files.get_info("/tmp", user="bob"),
        "exists": lambda: sandbox.files.exists("/tmp", user="bob"),
        "make": lambda: sandbox.files.make_dir("/tmp/bobs", user="bob"),
        "move": lambda: sandbox.files.rename("/tmp/a", "/tmp/b", user="bob"),
        "remove": lambda: sandbox.files.remove("/tmp/a", user="bob"),
        "watch": lambda: sandbox.files.watch_dir("/tmp", user="bob"),
        "read": lambda: sandbox.files.read("/etc/hostname", user="bob"),
        "write": lambda: sandbox.files.write("/tmp/b", "x", user="bob"),
        "command": lambda: sandbox.commands.run("true", user="bob"),
    }
    for name, call in calls.items():
        with pytest.raises(AuthenticationException, match="invalid username: 'bob'"):
            call()
            raise AssertionError(f"{name} did not refuse")


def test_files_can_be_made_and_written_though_root_has_lost_its_name(sandbox):
    sandbox.commands.run("sed -i /^root:/d /etc/passwd", user="root")
    assert sandbox.files.make_dir("still/made", request_timeout=10) is True
    sandbox.files.write("still/made/file", "kept", request_timeout=10)
    assert sandbox.files.read("still/made/file", request_timeout=10) == "kept"
    assert sandbox.files.get_info("still/made/file").owner == "user"
