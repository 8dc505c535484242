"""Snapshots: of images, of Dockerfiles, of sandboxes; and copies of sandboxes.

Builds begin with `base`, whose user is not root: what they write is in that user's home.
"""

import io
import tarfile
import threading
import uuid

import pytest
from conftest import ALIAS, needs_newest_sdk, state, wait_for
from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, CreateSnapshotParams, Image

pytestmark = needs_newest_sdk


def word(value):
    return str(getattr(value, "value", value))


@pytest.fixture
def name(daytona):
    """A snapshot's name; what bears it in the end is removed."""
    name = f"Made-{uuid.uuid4().hex[:8]}:1.0"
    yield name
    try:
        daytona.snapshot.delete(name)
    except Exception as error:
        assert "not exist" in str(error) or "not found" in str(error), error


@pytest.fixture
def plain_storage(monkeypatch):
    """The SDK sends build contexts with a client that refuses plain HTTP and cannot be told otherwise. This server is on
    loopback, without a certificate that anybody trusts: that one option is set, and nothing else."""
    from daytona._sync import object_storage

    real = object_storage.S3Store

    def plain(*arguments, client_options=None, **more):
        return real(*arguments, client_options={**(client_options or {}), "allow_http": True}, **more)

    monkeypatch.setattr(object_storage, "S3Store", plain)


def test_the_built_in_ones_are_listed_by_pages(daytona):
    first = daytona.snapshot.list(page=1, limit=1)
    assert (len(first.items), first.page) == (1, 1) and first.total == first.total_pages >= 2
    every = daytona.snapshot.list()
    assert {"base", "code-interpreter"} <= {one.name for one in every.items}
    base = daytona.snapshot.get("base")
    assert base.general and word(base.state) == "active"
    assert daytona.snapshot.get(base.id).name == "base"
    assert uuid.UUID(base.id).version == 4
    with pytest.raises(Exception, match="not this organisation's"):
        daytona.snapshot.delete("base")


def test_a_snapshot_of_an_image(daytona, server, name):
    made = daytona.snapshot.create(CreateSnapshotParams(name=name, image=ALIAS))
    assert (made.name, word(made.state), made.image_name, made.general) == (name, "active", ALIAS, False)
    assert daytona.snapshot.get(name).id == daytona.snapshot.get(made.id).id == made.id
    assert name in [one.name for one in daytona.snapshot.list().items]
    with pytest.raises(Exception, match="already exists"):
        daytona.snapshot.create(CreateSnapshotParams(name=name, image=ALIAS))
    for called in (name, made.id):
        sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot=called))
        try:
            assert sandbox.process.exec("echo here").result.strip() == "here"
        finally:
            daytona.delete(sandbox)
    assert server.ask("POST", f"/daytona/api/snapshots/{made.id}/deactivate", server.key) == (204, None)
    assert word(daytona.snapshot.get(name).state) == "inactive"
    with pytest.raises(Exception, match="not active"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    assert word(daytona.snapshot.activate(name).state) == "active"
    daytona.snapshot.delete(made)
    with pytest.raises(Exception, match="not exist|not found"):
        daytona.snapshot.get(name)
    with pytest.raises(Exception, match="not found"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))


def test_an_image_that_nobody_has_fails_with_its_name(daytona, name):
    with pytest.raises(Exception, match="(?s)Failed to create snapshot.*nosuch"):
        daytona.snapshot.create(CreateSnapshotParams(name=name, image="registry.invalid/nosuch:1"))
    failed = daytona.snapshot.get(name)
    assert word(failed.state) == "error" and failed.error_reason


def test_a_declarative_image_is_built_with_its_files_and_its_log(daytona, name, plain_storage, tmp_path):
    (tmp_path / "one.txt").write_text("a single file")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "two.txt").write_text("in a folder")
    # More than one part of an upload in several.
    (folder / "large.bin").write_bytes(b"0123456789abcdef" * (7 << 16))
    mark = uuid.uuid4().hex
    image = (
        Image.base(ALIAS)
        .add_local_file(str(tmp_path / "one.txt"), "/opt/one.txt")
        .add_local_dir(str(folder), "/opt/folder")
        .run_commands(f"echo built {mark}", "wc -c < /opt/folder/large.bin > /home/user/size")
        .env({"COLOUR": "green"})
        .workdir("/opt/folder")
    )
    lines = []
    made = daytona.snapshot.create(CreateSnapshotParams(name=name, image=image), on_logs=lines.append, timeout=170)
    assert word(made.state) == "active" and "COLOUR" in made.build_info.dockerfile_content
    assert f"built {mark}" in "\n".join(lines), lines
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    try:
        said = sandbox.process.exec("cat /opt/one.txt deep/two.txt /home/user/size; echo; echo $COLOUR; pwd").result
        assert said.split("\n")[:4] == [f"a single filein a folder{7 << 20}", "", "green", "/opt/folder"], said
    finally:
        daytona.delete(sandbox)


def test_a_sandbox_of_an_image_waits_for_its_build(daytona, server, plain_storage, tmp_path):
    (tmp_path / "file.txt").write_text("sent")
    mark = uuid.uuid4().hex
    image = Image.base(ALIAS).add_local_file(str(tmp_path / "file.txt"), "/srv/file.txt").env({"MARK": mark})
    image = image.run_commands("echo the log of $MARK; sleep 2")
    lines = []
    sandbox = daytona.create(
        CreateSandboxFromImageParams(image=image, labels={"of": "image"}), on_snapshot_create_logs=lines.append, timeout=170
    )
    try:
        assert state(sandbox) == "started"
        assert f"the log of {mark}" in "\n".join(lines), lines
        assert sandbox.process.exec("cat /srv/file.txt; echo -$MARK").result.strip() == f"sent-{mark}"
        seen = daytona.get(sandbox.id)
        assert seen.labels["of"] == "image" and seen.snapshot is None and "MARK" in seen.build_info.dockerfile_content
        # The log is there afterwards, and no snapshot was made of it.
        _, where = server.ask("GET", f"/daytona/api/sandbox/{sandbox.id}/build-logs-url", server.key)
        status, text = server.ask("GET", where["url"], server.key)
        assert status == 200 and f"the log of {mark}".encode() in text
        assert not [one.name for one in daytona.snapshot.list().items if sandbox.id in one.name]
    finally:
        daytona.delete(sandbox)


def test_a_sandbox_of_an_image_by_its_name(daytona):
    sandbox = daytona.create(CreateSandboxFromImageParams(image=ALIAS), timeout=120)
    try:
        assert sandbox.process.exec("echo here").result.strip() == "here"
    finally:
        daytona.delete(sandbox)


def test_a_build_that_fails_is_told_with_its_reason(daytona, server):
    image = Image.base(ALIAS).run_commands("echo before the end; exit 7")
    with pytest.raises(Exception, match="(?i)build_failed"):
        daytona.create(CreateSandboxFromImageParams(image=image), timeout=120)
    body = {"buildInfo": {"dockerfileContent": f"FROM {ALIAS}\nRUN exit 7\n"}}
    _, waits = server.ask("POST", "/daytona/api/sandbox", server.key, body)
    assert waits["state"] == "pending_build"
    path = f"/daytona/api/sandbox/{waits['id']}"
    failed = wait_for(lambda: ended(server, path), 60, "the end of a build")
    assert failed["state"] == "build_failed" and "7" in failed["errorReason"]
    other = server.another_organisation()
    for method, below in [("GET", ""), ("DELETE", ""), ("GET", "/build-logs"), ("GET", "/build-logs-url")]:
        assert server.ask(method, path + below, other)[0] == 404
    assert server.ask("DELETE", path, server.key)[0] == 200
    assert server.ask("GET", path, server.key)[0] == 404


def ended(server, path):
    _, seen = server.ask("GET", path, server.key)
    return seen if seen["state"] in ("build_failed", "error", "started") else None


def test_a_build_can_be_given_up(server):
    body = {"buildInfo": {"dockerfileContent": f"FROM {ALIAS}\nRUN sleep 100 # {uuid.uuid4().hex}\n"}}
    _, waits = server.ask("POST", "/daytona/api/sandbox", server.key, body)
    path = f"/daytona/api/sandbox/{waits['id']}"
    wait_for(lambda: server.ask("GET", path, server.key)[1]["state"] == "building_snapshot", what="a build")
    assert server.ask("DELETE", path, server.key)[0] == 200
    assert server.ask("GET", path, server.key)[0] == 404


def test_a_build_survives_the_server(server, daytona):
    mark = uuid.uuid4().hex
    body = {"buildInfo": {"dockerfileContent": f"FROM {ALIAS}\nRUN sleep 3; echo {mark} > /home/user/kept\n"}}
    _, waits = server.ask("POST", "/daytona/api/sandbox", server.key, body)
    server.stop()
    server.start()
    path = f"/daytona/api/sandbox/{waits['id']}"
    made = wait_for(lambda: ended(server, path), 90, "the sandbox of a build")
    assert made["state"] == "started", made
    sandbox = daytona.get(waits["id"])
    assert sandbox.process.exec("cat /home/user/kept").result.strip() == mark
    daytona.delete(sandbox)


def test_a_sandbox_becomes_a_snapshot(daytona, server, fresh, name):
    fresh.fs.upload_file(b"then", "state.txt")
    fresh.create_snapshot(name)
    assert state(fresh) == "started"
    fresh.fs.upload_file(b"now", "state.txt")
    made = daytona.snapshot.get(name)
    assert (word(made.state), made.source_sandbox_id) == ("active", fresh.id)
    assert [one.name for one in daytona.snapshot.list(source_sandbox_id=fresh.id).items] == [name]
    with pytest.raises(Exception, match="already exists"):
        fresh.create_snapshot(name)
    later = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    try:
        assert later.fs.download_file("state.txt") == b"then"
        assert later.process.exec("whoami").result == fresh.process.exec("whoami").result
        daytona.snapshot.delete(name)
        later.stop()
        later.start()
        assert later.fs.download_file("state.txt") == b"then", "a sandbox keeps the files of a snapshot that is gone"
    finally:
        daytona.delete(later)
    memory = {"name": name, "includeMemory": True}
    status, said = server.ask("POST", f"/daytona/api/sandbox/{fresh.id}/snapshot", server.key, memory)
    assert status == 400 and "includeMemory" in said["message"]


def test_a_fork_goes_its_own_way(daytona, server, fresh):
    fresh.fs.upload_file(b"shared", "common.txt")
    preview = fresh.create_signed_preview_url(3000)
    fork = fresh.fork(name=f"fork-{fresh.id}")
    try:
        assert state(fork) == "started" and fork.id != fresh.id
        assert fork.process.exec("echo $DAYTONA_SANDBOX_ID").result.strip() == fork.id
        fork.fs.upload_file(b"the fork's", "common.txt")
        assert fresh.fs.download_file("common.txt") == b"shared"
        grandchild = fork.fork()
        try:
            assert grandchild.fs.download_file("common.txt") == b"the fork's"

            def ids(path):
                status, told = server.ask("GET", f"/daytona/api/sandbox/{path}", server.key)
                assert status == 200, told
                return [one["id"] for one in told] if isinstance(told, list) else told["id"]

            assert ids(f"{grandchild.id}/parent") == fork.id
            assert ids(f"{grandchild.id}/ancestors") == [fork.id, fresh.id]
            assert ids(f"{fresh.id}/forks") == [fork.id]
            assert ids(f"{fresh.id}/ancestors") == []
            assert server.ask("GET", f"/daytona/api/sandbox/{fresh.id}/parent", server.key)[0] == 404
            # What opens the source does not open its copies.
            link = preview.url.replace(fresh.id, fork.id)
            assert server.ask("GET", link)[0] in (401, 404)
            other = server.another_organisation()
            for path in ("parent", "ancestors", "forks"):
                assert server.ask("GET", f"/daytona/api/sandbox/{fork.id}/{path}", other)[0] == 404
            for path in ("fork", "snapshot", "backup"):
                assert server.ask("POST", f"/daytona/api/sandbox/{fork.id}/{path}", other, {})[0] == 404
        finally:
            daytona.delete(grandchild)
    finally:
        daytona.delete(fork)
    wait_for(lambda: server.ask("GET", f"/daytona/api/sandbox/{fresh.id}/forks", server.key)[1] == [], what="no forks")
    _, gone = server.ask("GET", f"/daytona/api/sandbox/{fresh.id}/forks?includeDestroyed=true", server.key)
    assert [one["id"] for one in gone] == [fork.id]


def test_a_backup_is_told(server, fresh):
    status, seen = server.ask("POST", f"/daytona/api/sandbox/{fresh.id}/backup", server.key)
    assert (status, seen["state"], seen["backupState"]) == (200, "started", "Completed") and seen["backupCreatedAt"]


def archive(text):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


@pytest.fixture
def storage(server):
    """The object store by hand, with the client that the SDK brings."""
    from obstore.store import S3Store

    def opened(**other):
        status, access = server.ask("GET", "/daytona/api/object-storage/push-access", server.key)
        assert status == 200
        access.update(other)
        return access, S3Store(
            bucket=access["bucket"],
            endpoint=access["storageUrl"],
            region=access["region"],
            access_key_id=access["accessKey"],
            secret_access_key=access["secret"],
            session_token=access["sessionToken"],
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )

    return opened


def test_contexts_are_taken_whole_or_not_at_all(storage):
    access, store = storage()
    key = f"{access['organizationId']}/{uuid.uuid4().hex}/context.tar"
    with pytest.raises(FileNotFoundError):
        store.head(key)
    store.put(key, archive(b"small"))
    store.head(key)
    # In several parts that overtake each other.
    other = f"{access['organizationId']}/{uuid.uuid4().hex}/context.tar"
    store.put(other, iter([b"x" * (1 << 20)] * 23), chunk_size=5 << 20, max_concurrency=4)
    store.head(other)
    with pytest.raises(Exception, match="(?i)not for reading|AccessDenied|403|permission"):
        store.get(key).bytes()


def test_credentials_open_nothing_else(server, storage):
    access, store = storage()
    for key in (f"acme/{uuid.uuid4().hex}/context.tar", f"{access['organizationId']}/x/other", "x"):
        with pytest.raises(Exception):
            store.put(key, b"x")
    for wrong in ({"secret": "a" * 64}, {"sessionToken": "a" * 64}, {"accessKey": "61"}, {"bucket": "other"}):
        _, store = storage(**wrong)
        with pytest.raises(Exception):
            store.put(f"{access['organizationId']}/{uuid.uuid4().hex}/context.tar", b"x")
    path = f"/daytona/storage/{access['bucket']}/{access['organizationId']}/{'0' * 32}/context.tar"
    for key in (None, server.key):
        for method in ("HEAD", "GET", "PUT", "POST", "DELETE"):
            assert server.ask(method, path, key, b"" if method in ("PUT", "POST") else None)[0] == 403
    _, made = server.ask("POST", "/api/keys", server.key, {"name": "reader", "scope": "read"})
    assert server.ask("GET", "/daytona/api/object-storage/push-access", made["secret"])[0] == 403


def test_several_contexts_come_at_once(storage):
    access, store = storage()
    keys = [f"{access['organizationId']}/{uuid.uuid4().hex}/context.tar" for _ in range(3)]
    send = [
        threading.Thread(target=store.put, args=(key, iter([b"y" * (1 << 20)] * 11)), kwargs={"chunk_size": 5 << 20})
        for key in keys
    ]
    for thread in send:
        thread.start()
    for thread in send:
        thread.join()
    for key in keys:
        store.head(key)
