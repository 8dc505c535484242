"""Templates that are built with the SDK: their steps, their cache, their logs, their failures."""

import hashlib
import io
import tarfile

import pytest
from conftest import name, wait_for
from e2b import Sandbox, Template, wait_for_timeout
from e2b.exceptions import BuildException


def build(template, called, **options):
    """Builds, and gives what came of it together with what was said."""
    said = []
    info = Template.build(template, called, cpu_count=1, memory_mb=512, on_build_logs=said.append, **options)
    return info, [entry.message for entry in said]


def steps_of(said):
    return [line for line in said if line.startswith(("[", "CACHED ["))]


@pytest.fixture
def context(tmp_path):
    """Files beside the template: a tree, an executable, links of all kinds."""
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "test.txt").write_text("from the context")
    (folder / "deep" / "script.sh").write_text("#!/bin/sh\necho run\n")
    (folder / "deep" / "script.sh").chmod(0o755)
    (folder / "relative").symlink_to("test.txt")
    (folder / "dangling").symlink_to("nowhere")
    (tmp_path / ".dockerignore").write_text("folder/secret.txt\n")
    (folder / "secret.txt").write_text("not for templates")
    return tmp_path


@pytest.mark.timeout(300)
def test_every_kind_of_step_is_done_and_is_there_in_a_sandbox(server, create, context):
    called = name("steps")
    template = (
        Template(file_context_path=str(context))
        .from_template("base")
        .set_user("root")
        .set_workdir("/srv/app")
        .copy("folder", "data")
        .copy("folder/deep/script.sh", "/usr/local/bin/say", user="root", mode=0o755)
        .set_envs({"GREETING": "hello", "WHOLE": "$GREETING world"})
        .run_cmd('echo "$WHOLE" > greeting && whoami >> greeting')
        .run_cmd("id -un > /srv/app/by-user", user="root")
        .set_user("user")
        .run_cmd("touch /home/user/mine")
        .set_workdir("/home/user")
    )
    info, said = build(template, called)
    assert info.name == called and len(info.build_id) == 36
    assert any("RUN echo" in line for line in said), said
    box = create(called)
    run = lambda command: box.commands.run(command).stdout
    assert run("cat /srv/app/greeting") == "hello world\nroot\n"
    assert run("cat /srv/app/data/test.txt") == "from the context"
    assert run("cat /srv/app/data/relative; readlink /srv/app/data/dangling") == "from the contextnowhere\n"
    assert run("ls /srv/app/data") == "dangling\ndeep\nrelative\ntest.txt\n"
    assert run("say") == "run\n"
    assert run("stat -c %U:%a /usr/local/bin/say /home/user/mine") == "root:755\nuser:644\n"
    # The last user, directory and environment are the sandboxes' own.
    assert run('whoami; pwd; echo "$GREETING"') == "user\n/home/user\nhello\n"


@pytest.mark.timeout(300)
def test_a_glob_is_the_tree_before_it_below_home(server, create, context):
    called = name("glob")
    template = Template(file_context_path=str(context)).from_base_image().copy("folder/*", "folder")
    build(template.run_cmd("cat folder/test.txt"), called)
    assert create(called).files.read("/home/user/folder/test.txt") == "from the context"


@pytest.mark.timeout(300)
def test_what_was_done_once_is_found_and_what_is_forced_is_done_again(server):
    called, mark = name("cache"), name("mark")
    template = lambda: Template().from_image("ubuntu:22.04").run_cmd(f"echo {mark} > a").run_cmd("date +%N > b")
    _, first = build(template(), called)
    assert not any(line.startswith("CACHED") for line in steps_of(first)), first
    _, second = build(template(), called)
    assert all(line.startswith("CACHED") for line in steps_of(second)) and steps_of(second), second
    last = Template().from_image("ubuntu:22.04").run_cmd(f"echo {mark} > a").skip_cache().run_cmd("date +%N > b")
    _, third = build(last, called)
    assert [line.startswith("CACHED") for line in steps_of(third)] == [True, False], third
    _, fourth = build(template(), called, skip_cache=True)
    assert not any(line.startswith("CACHED") for line in steps_of(fourth)), fourth


@pytest.mark.timeout(300)
def test_the_cache_of_one_organisation_is_no_others(server, stranger):
    mark = name("mark")
    template = lambda: Template().from_template("base").run_cmd(f"echo {mark}")
    build(template(), name("mine"))
    _, said = build(template(), name("theirs"), api_key=stranger)
    assert not any(line.startswith("CACHED") for line in said), said


@pytest.mark.timeout(300)
def test_files_are_sent_once_unless_one_insists(server, context):
    template = lambda **how: Template(file_context_path=str(context)).from_template("base").copy("folder/test.txt", "/tmp/", **how)
    # Of this test alone: what others have sent is there already.
    (context / "folder" / "test.txt").write_text(name("content"))
    _, first = build(template(), name("once"))
    assert any(line.startswith("Uploaded") for line in first), first
    _, again = build(template(), name("once"))
    assert any("already cached" in line for line in again), again
    _, insisted = build(template(force_upload=True), name("once"))
    assert any(line.startswith("Uploaded") for line in insisted), insisted


@pytest.mark.timeout(300)
def test_a_step_that_fails_is_named_with_its_reason(server):
    called = name("failure")
    template = Template().from_template("base").run_cmd("true").run_cmd("echo out; echo broken >&2; exit 7")
    with pytest.raises(BuildException, match="failed to run command 'echo out; echo broken >&2; exit 7'.*exit status 7"):
        build(template, called)
    with pytest.raises(Exception, match="not found"):
        Sandbox.create(called)
    _, told = server.ask("GET", f"/e2b/templates/{called}", server.key)
    assert (told["buildStatus"], [one["status"] for one in told["builds"]]) == ("error", ["error"])
    path = f"/e2b/templates/{told['templateID']}/builds/{told['builds'][0]['buildID']}"
    _, status = server.ask("GET", f"{path}/status?logsOffset=0&limit=100", server.key)
    assert (status["status"], status["reason"]["step"], status["logs"]) == ("error", "2", [])
    lines = {(entry["message"], entry.get("step")) for entry in status["logEntries"]}
    assert {("out", "2"), ("broken", "2")} <= lines, lines


@pytest.mark.timeout(300)
def test_a_user_that_does_not_exist_is_named_as_the_sdk_expects(server):
    said = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    with pytest.raises(BuildException) as failure:
        build(Template().from_image("ubuntu:22.04").run_cmd("whoami", user="root123"), name("nobody"))
    assert said in str(failure.value)


@pytest.mark.timeout(300)
def test_the_log_is_read_in_pages_and_by_time(server):
    called = name("log")
    build(Template().from_template("base").run_cmd("seq 1 250"), called)
    _, told = server.ask("GET", f"/e2b/templates/{called}", server.key)
    path = f"/e2b/templates/{told['templateID']}/builds/{told['buildID']}"
    get = lambda query: server.ask("GET", f"{path}/{query}", server.key)
    lines, offset = [], 0
    while page := get(f"status?logsOffset={offset}")[1]["logEntries"]:
        assert len(page) <= 100
        lines += page
        offset += len(page)
    numbers = [entry["message"] for entry in lines if entry["message"].isdigit()]
    assert numbers == [str(number) for number in range(1, 251)]
    forward = get("logs?limit=10")[1]["logs"]
    assert [entry["message"] for entry in forward] == [entry["message"] for entry in lines[:10]]
    backward = get("logs?direction=backward&limit=3")[1]["logs"]
    assert [entry["message"] for entry in backward] == [entry["message"] for entry in lines[:-4:-1]]
    assert get("logs?cursor=9999999999999")[1]["logs"] == []
    errors = get("status?level=error")[1]["logEntries"]
    assert all(entry["level"] == "error" for entry in errors)
    for wrong in ("status?limit=101", "status?logsOffset=x", "logs?direction=up", "status?level=loud", "logs?curser=1"):
        assert get(wrong)[0] == 400, wrong


@pytest.mark.timeout(120)
def test_a_build_goes_on_in_the_background(server):
    called = name("background")
    template = Template().from_image("ubuntu:22.04").skip_cache().run_cmd("sleep 3")
    info = Template.build_in_background(template, called, cpu_count=1, memory_mb=512)
    assert Template.get_build_status(info).status.value == "building"
    wait_for(lambda: Template.get_build_status(info).status.value == "ready", 60, "a ready build")
    # What has begun is not begun again.
    path = f"/e2b/v2/templates/{info.template_id}/builds/{info.build_id}"
    status, told = server.ask("POST", path, server.key, {"fromTemplate": "base"})
    assert (status, told["message"]) == (400, "build is not in waiting state")


@pytest.mark.timeout(120)
def test_a_newer_build_of_the_same_tag_ends_the_older(server):
    called = name("race")
    slow = lambda: Template().from_template("base").skip_cache().run_cmd("sleep 60")
    older = Template.build_in_background(slow(), called, cpu_count=1, memory_mb=512)
    newer = Template.build_in_background(slow(), called, cpu_count=1, memory_mb=512)
    ended = wait_for(lambda: (found := Template.get_build_status(older)).status.value == "error" and found, 30, "the end")
    assert ended.reason.message == "The build was canceled because it was superseded by a newer one."
    assert Template.get_build_status(newer).status.value == "building"
    assert server.ask("DELETE", f"/e2b/templates/{called}", server.key)[0] == 204


@pytest.mark.timeout(300)
def test_a_start_command_runs_in_every_sandbox(server, create):
    called = name("start")
    template = Template().from_template("base").set_start_cmd(
        "python3 -m http.server 8123 --directory /tmp", "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))'"
    )
    build(template, called)
    box = create(called)
    found = box.commands.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/")
    assert found.stdout == "200"


@pytest.mark.timeout(300)
def test_a_template_stands_on_another(server, create):
    lower, upper = name("lower"), name("upper")
    build(Template().from_template("base").set_envs({"LOWER": "1"}).run_cmd("echo lower > /home/user/a"), lower)
    build(Template().from_template(lower).run_cmd("cat /home/user/a > /home/user/b; echo $LOWER >> /home/user/b"), upper)
    assert create(upper).files.read("/home/user/b") == "lower\n1\n"
    # What a sandbox stands on stays when its template goes.
    box = create(lower)
    assert server.ask("DELETE", f"/e2b/templates/{lower}", server.key)[0] == 204
    assert box.files.read("/home/user/a") == "lower\n"
    assert server.ask("DELETE", f"/e2b/templates/{lower}", server.key)[0] == 404
    assert create(upper).files.read("/home/user/b") == "lower\n1\n"


@pytest.mark.timeout(300)
def test_a_template_keeps_its_size_and_its_place_in_the_list(server, create):
    called = name("listed")
    info, _ = build(Template().from_template("base"), called)
    status, listed = server.ask("GET", "/e2b/templates?teamID=whatever", server.key)
    found = next(one for one in listed if one["templateID"] == info.template_id)
    assert (found["aliases"], found["names"]) == ([called], [f"default/{called}"])
    assert (found["cpuCount"], found["memoryMB"], found["public"], found["buildStatus"]) == (1, 512, False, "ready")
    assert create(called).get_info().memory_mb == 512
    # Page by page the same, the installation's own first.
    pages, token = [], ""
    while True:
        connection = server_page(server, f"/e2b/v2/templates?limit=1{token}")
        pages += connection[0]
        if not connection[1]:
            break
        token = f"&nextToken={connection[1]}"
    assert [one["templateID"] for one in pages] == [one["templateID"] for one in listed]


def server_page(server, path):
    import json
    import urllib.request

    request = urllib.request.Request(server.url + path, headers={"X-API-Key": server.key})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read()), answer.headers["X-Next-Token"]


@pytest.mark.timeout(300)
def test_a_public_template_is_everybodys_to_start_and_its_owners_to_look_into(server, create, stranger):
    called = name("public")
    info, _ = build(Template().from_template("base").run_cmd("echo shared > /home/user/a"), called)
    whole = f"default/{called}"
    with pytest.raises(Exception, match="not found"):
        Sandbox.create(whole, api_key=stranger)
    status, told = server.ask("PATCH", f"/e2b/v2/templates/{info.template_id}", server.key, {"public": True})
    assert (status, told) == (200, {"names": [whole]})
    theirs = Sandbox.create(whole, api_key=stranger, timeout=60)
    try:
        assert theirs.files.read("/home/user/a") == "shared\n"
    finally:
        theirs.kill(api_key=stranger)
    escaped = whole.replace("/", "%2F")
    ask = lambda method, path, body=None: server.ask(method, path, stranger, body)[0]
    builds = f"/e2b/templates/{info.template_id}/builds/{info.build_id}"
    for method, path, body in [
        ("GET", f"/e2b/templates/{escaped}", None),
        ("GET", f"{builds}/status", None),
        ("GET", f"{builds}/logs", None),
        ("DELETE", f"/e2b/templates/{escaped}", None),
        ("PATCH", f"/e2b/v2/templates/{info.template_id}", {"public": False}),
        ("GET", f"/e2b/templates/{info.template_id}/tags", None),
        ("POST", "/e2b/templates/tags", {"target": whole, "tags": ["x"]}),
        ("GET", f"/e2b/templates/{info.template_id}/files/{'0' * 64}", None),
        ("POST", f"/e2b/v2/templates/{info.template_id}/builds/{info.build_id}", {"fromTemplate": "base"}),
    ]:
        assert ask(method, path, body) == 404, (method, path)
    assert ask("GET", f"/e2b/templates/aliases/{escaped}") == 200
    server.ask("PATCH", f"/e2b/templates/{info.template_id}", server.key, {"public": False})
    assert ask("GET", f"/e2b/templates/aliases/{escaped}") == 404


def archive():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("a.txt")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"hi"))
    return packed.getvalue()


@pytest.fixture
def asked(server):
    """A template that waits for its files, and the link for one of them."""
    called, digest = name("upload"), hashlib.sha256(name("hash").encode()).hexdigest()
    _, made = server.ask("POST", "/e2b/v3/templates", server.key, {"name": called})
    status, link = server.ask("GET", f"/e2b/templates/{made['templateID']}/files/{digest}", server.key)
    assert (status, link["present"]) == (201, False)
    return made, digest, link["url"]


def test_a_link_takes_one_archive_and_asks_for_no_key(server, asked):
    made, digest, url = asked
    assert server.ask("PUT", url, None, archive())[0] == 200
    status, link = server.ask("GET", f"/e2b/templates/{made['templateID']}/files/{digest}", server.key)
    assert (status, link["present"]) == (201, True)


def test_a_link_is_good_for_nothing_else(server, asked):
    made, digest, url = asked
    other = hashlib.sha256(b"other").hexdigest()
    path, query = url.split("?")
    for wrong in (
        path,
        url.replace(digest, other),
        url.replace("end=", "end=9"),
        url.replace("key=", "key=x"),
        url[:-1] + ("0" if url[-1] != "0" else "1"),
        f"{path}?{query}&end=99999999999",
    ):
        assert server.ask("PUT", wrong, None, archive())[0] in (400, 401), wrong
    # A key without a link is no right to send, and no link is a right to anything else.
    assert server.ask("PUT", path, server.key, archive())[0] == 401
    assert server.ask("GET", url, None)[0] == 401
    status, link = server.ask("GET", f"/e2b/templates/{made['templateID']}/files/{digest}", server.key)
    assert link["present"] is False


def test_a_link_ends_with_its_key(server):
    _, key = server.ask("POST", "/api/keys", server.key, {"name": "k", "scope": "write"})
    called, digest = name("revoked"), hashlib.sha256(name("hash").encode()).hexdigest()
    _, made = server.ask("POST", "/e2b/v3/templates", key["secret"], {"name": called})
    _, link = server.ask("GET", f"/e2b/templates/{made['templateID']}/files/{digest}", key["secret"])
    server.ask("DELETE", f"/api/keys/{key['id']}", server.key)
    assert server.ask("PUT", link["url"], None, archive())[0] == 401


def test_who_may_only_look_gets_no_link(server, asked):
    made, digest, _ = asked
    _, reader = server.ask("POST", "/api/keys", server.key, {"name": "r", "scope": "read"})
    path = f"/e2b/templates/{made['templateID']}"
    assert server.ask("GET", f"{path}/files/{digest}", reader["secret"])[0] == 403
    assert server.ask("GET", f"{path}/builds/{made['buildID']}/status", reader["secret"])[0] == 200


def test_a_request_that_cannot_be_built_is_refused_by_name(server, asked):
    made, digest, _ = asked
    start = lambda body: server.ask("POST", f"/e2b/v2/templates/{made['templateID']}/builds/{made['buildID']}", server.key, body)
    copy = {"type": "COPY", "args": ["a", "b", "", ""], "filesHash": digest}
    for body, said in [
        ({}, "exactly one of fromImage and fromTemplate"),
        ({"fromImage": "a", "fromTemplate": "b"}, "exactly one of fromImage and fromTemplate"),
        ({"fromTemplate": "base", "steps": [copy]}, "never sent"),
        ({"fromTemplate": "base", "steps": [{"type": "ADD", "args": []}]}, "step 1 (ADD)"),
        ({"fromTemplate": "base", "stepz": []}, "did you mean `steps`?"),
        ({"fromTemplate": "base", "steps": [{"type": "RUN", "args": ["true"], "usr": "root"}]}, "usr"),
    ]:
        status, told = start(body)
        assert status == 400 and said in told["message"], (body, told)
    for body, said in [
        ({}, "name"),
        ({"name": "not a name!"}, "no name of a template"),
        ({"name": "base"}, "built-in"),
        ({"name": name("x"), "tags": ["6f3a1c1e-0000-4000-8000-00000000abcd"]}, "UUID"),
        ({"name": name("x"), "cpuCont": 1}, "did you mean `cpuCount`?"),
    ]:
        status, told = server.ask("POST", "/e2b/v3/templates", server.key, body)
        assert status in (400, 409) and said in told["message"], (body, told)
    assert server.ask("POST", "/e2b/templates", server.key, {"dockerfile": "FROM x"})[0] == 410


def test_an_older_client_asks_in_the_second_version(server):
    status, told = server.ask("POST", "/e2b/v2/templates", server.key, {"alias": name("second"), "cpuCount": 1, "memoryMB": 256})
    assert status == 202 and told["templateID"] and len(told["buildID"]) == 36
    assert (told["cpuCount"], told["memoryMB"], told["spawnCount"]) == (1, 256, 0)
    path = f"/e2b/templates/{told['templateID']}/builds/{told['buildID']}/status"
    assert server.ask("GET", path, server.key)[1]["status"] == "waiting"


def test_the_second_version_of_exists_knows_tags(server):
    assert Template.exists("base") and not Template.exists(name("nobody"))
    assert server.ask("GET", "/e2b/templates/aliases/base%3Anobody", server.key)[0] == 404


def test_a_ready_command_that_waits_is_waited_for(server):
    called = name("ready")
    template = Template().from_template("base").set_start_cmd("sleep 100", wait_for_timeout(1000))
    _, said = build(template, called)
    assert any("sleep 1" in line for line in said), said
