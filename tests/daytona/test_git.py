"""Git: a whole working day, and credentials that leave no trace.

The remote is a server with a password inside the sandbox itself: git's own http-backend behind a few lines of Python, so
that the test needs no network.
"""

import os

import pytest
from conftest import SDK

PASSWORD = "hunter2-" + os.urandom(8).hex()

REMOTE = r'''
import base64, http.server, os, subprocess, sys
WANTED = "Basic " + base64.b64encode(sys.argv[2].encode()).decode()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def serve(self):
        if self.headers.get("Authorization") != WANTED:
            self.send_response(401); self.send_header("WWW-Authenticate", 'Basic realm="x"'); self.end_headers(); return
        path, _, query = self.path.partition("?")
        env = dict(os.environ, GIT_PROJECT_ROOT="/tmp/remote", GIT_HTTP_EXPORT_ALL="1", REMOTE_USER="ada",
                   PATH_INFO=path, QUERY_STRING=query, REQUEST_METHOD=self.command,
                   CONTENT_TYPE=self.headers.get("Content-Type", ""),
                   HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""))
        length = self.headers.get("Content-Length")
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while True:
                size = int(self.rfile.readline(), 16)
                chunk = self.rfile.read(size); self.rfile.readline()
                if not size: break
                body += chunk
        else:
            body = self.rfile.read(int(length or 0))
        env["CONTENT_LENGTH"] = str(len(body))
        out = subprocess.run(["git", "http-backend"], env=env, input=body, stdout=subprocess.PIPE).stdout
        head, _, rest = out.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = next((value for name, value in fields if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in fields:
            if name != "Status": self.send_header(name, value)
        self.end_headers(); self.wfile.write(rest)
    do_GET = do_POST = serve
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''

URL = "http://127.0.0.1:9418/repo.git"


@pytest.fixture(scope="module")
def remote(sandbox):
    """A bare repository with one commit on main and one on side, behind a password."""
    prepare = """
    set -e
    rm -rf /tmp/remote /tmp/seed; mkdir -p /tmp/remote
    git init -q --bare -b main /tmp/remote/repo.git; git -C /tmp/remote/repo.git config http.receivepack true
    git init -q -b main /tmp/seed; cd /tmp/seed
    git config user.name Seed; git config user.email seed@example.com
    echo one > a.txt; git add .; git commit -qm first
    git checkout -qb side; echo side > b.txt; git add .; git commit -qm aside
    git push -q /tmp/remote/repo.git main side
    """
    done = sandbox.process.exec(prepare)
    assert done.exit_code == 0, done.result
    sandbox.fs.upload_file(REMOTE.encode(), "/tmp/remote.py")
    sandbox.process.exec(
        f"python3 /tmp/remote.py 9418 ada:{PASSWORD} >/tmp/remote.log 2>&1 & "
        "for i in $(seq 100); do (: </dev/tcp/127.0.0.1/9418) 2>/dev/null && break; sleep 0.1; done"
    )
    yield URL
    sandbox.process.exec("pkill -f /tmp/remote.py")


def test_a_day_at_work(sandbox, remote):
    git = sandbox.git
    git.clone(remote, "work", username="ada", password=PASSWORD)
    assert git.status("work").current_branch == "main"
    git.create_branch("work", "feature")
    git.checkout_branch("work", "feature")
    assert sorted(git.branches("work").branches) == ["feature", "main"]

    sandbox.fs.upload_file(b"two\n", "work/new file.txt")
    sandbox.process.exec("echo more >> a.txt", cwd="work")
    seen = {file.name: (str(file.staging.value), str(file.worktree.value)) for file in git.status("work").file_status}
    assert seen == {"a.txt": ("Unmodified", "Modified"), "new file.txt": ("Untracked", "Untracked")}
    git.add("work", ["."])
    made = git.commit("work", "second\n\nwith a body", author="Ada", email="ada@example.com")
    assert len(made.sha) == 40 and git.status("work").file_status == []

    git.push("work", username="ada", password=PASSWORD)
    assert made.sha in sandbox.process.exec("git -C /tmp/remote/repo.git rev-parse feature").result
    git.checkout_branch("work", "main")
    git.delete_branch("work", "feature")
    assert git.branches("work").branches == ["main"]

    sandbox.process.exec("cd /tmp/seed && git checkout -q main && echo x > c.txt && git add . && git commit -qm third "
                         "&& git push -q /tmp/remote/repo.git main")
    git.pull("work", username="ada", password=PASSWORD)
    assert "c.txt" in [file.name for file in sandbox.fs.list_files("work")]


def test_a_branch_and_a_commit_can_be_cloned(sandbox, remote):
    sandbox.git.clone(remote, "by-branch", branch="side", username="ada", password=PASSWORD)
    assert sandbox.git.status("by-branch").current_branch == "side"
    first = sandbox.process.exec("git -C /tmp/seed rev-list --max-parents=0 HEAD").result.strip()
    sandbox.git.clone(remote, "by-commit", commit_id=first, username="ada", password=PASSWORD)
    assert sandbox.process.exec("git -C by-commit rev-parse HEAD").result.strip() == first


WATCH = r"""
import os, pathlib, sys, time
secret, stop = sys.argv[1][::-1].encode(), pathlib.Path("/tmp/stop-watching")
looks = 0
with open("/tmp/traces", "w") as traces:
    while not stop.exists():
        looks += 1
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            for kind in ["cmdline", "environ"]:
                try:
                    text = (folder / kind).read_bytes()
                except OSError:
                    continue
                if secret in text and b"/tmp/remote.py" not in text:
                    print(kind, text, file=traces)
    print("looked", looks >= 20, file=traces)
"""


def test_a_password_leaves_no_trace(sandbox, remote):
    sandbox.process.exec("git config --global credential.helper store; rm -f ~/.git-credentials /tmp/stop-watching")
    sandbox.fs.upload_file(WATCH.encode(), "/tmp/watch.py")
    # Backwards, so that the watcher does not see itself.
    sandbox.process.exec(f"python3 /tmp/watch.py {PASSWORD[::-1]} >/dev/null 2>&1 &")
    sandbox.git.clone(f"http://ada:{PASSWORD}@127.0.0.1:9418/repo.git", "clean")
    sandbox.process.exec("cd clean && git checkout -qb secret && git -c user.name=a -c user.email=b commit -qm x --allow-empty")
    sandbox.git.push("clean", username="ada", password=PASSWORD)
    sandbox.git.pull("clean", username="ada", password=PASSWORD, **({} if SDK < (0, 220) else {"branch": "main"}))
    sandbox.process.exec("touch /tmp/stop-watching; for i in $(seq 100); do grep -q looked /tmp/traces && break; sleep 0.1; done")
    assert sandbox.fs.download_file("/tmp/traces") == b"looked True\n"
    half = PASSWORD[len(PASSWORD) // 2 :]
    on_disk = sandbox.process.exec(f"grep -rlsa {half[:-1]}[{half[-1]}] clean ~ /tmp --exclude=remote.log")
    assert on_disk.result == "", on_disk.result
    sandbox.process.exec("git config --global --unset credential.helper")


def test_refusals_have_their_own_names(sandbox, remote):
    from daytona.common import errors

    def kind(name):
        return getattr(errors, name, errors.DaytonaError)

    with pytest.raises(kind("DaytonaGitAuthFailedError"), match="(?i)authentication|username"):
        sandbox.git.clone(remote, "refused", username="ada", password="wrong")
    with pytest.raises(kind("DaytonaGitAuthFailedError")):
        sandbox.git.clone(remote, "refused")
    with pytest.raises(Exception, match="not a git repository|cannot change"):
        sandbox.git.status("nosuch")
    sandbox.git.clone(remote, "errors", username="ada", password=PASSWORD)
    with pytest.raises(Exception, match="already exists"):
        sandbox.git.create_branch("errors", "main")
    with pytest.raises(Exception, match="nosuch"):
        sandbox.git.checkout_branch("errors", "nosuch")
    with pytest.raises(Exception, match="not a name git accepts"):
        sandbox.git.create_branch("errors", "--force")
    with pytest.raises(Exception, match="nothing to commit"):
        sandbox.git.commit("errors", "empty", author="a", email="b@c")
    with pytest.raises(Exception, match="not an empty directory"):
        sandbox.git.clone(remote, "errors", username="ada", password=PASSWORD)


def test_history_is_told(server, sandbox, remote):
    sandbox.git.clone(remote, "old", branch="side", username="ada", password=PASSWORD)
    _, commits = server.ask("GET", f"/daytona/toolbox/{sandbox.id}/git/history?path=old", server.key)
    assert [(one["message"], one["author"], one["email"]) for one in commits] == [
        ("aside", "Seed", "seed@example.com"),
        ("first", "Seed", "seed@example.com"),
    ]


def test_the_native_api_has_the_same_git_and_a_diff(server, sandbox, remote):
    base = f"/api/sandboxes/{sandbox.id}/git"
    body = {"url": remote, "path": "native", "username": "ada", "password": PASSWORD}
    assert server.ask("POST", f"{base}/clone", server.key, body) == (204, None)
    sandbox.process.exec("echo changed > a.txt", cwd="native")
    _, status = server.ask("GET", f"{base}/status?path=native", server.key)
    assert (status["branch"], status["files"][0]["worktree"]) == ("main", "modified")
    _, diff = server.ask("GET", f"{base}/diff?path=native", server.key)
    assert diff["files"] == [{"path": "a.txt", "added": 1, "removed": 1}]
    assert "-one\n+changed\n" in diff["patch"]
    assert server.ask("POST", f"{base}/add", server.key, {"path": "native", "files": ["."]})[0] == 204
    commit = {"path": "native", "message": "changed", "author": "Ada", "email": "ada@example.com"}
    _, made = server.ask("POST", f"{base}/commit", server.key, commit)
    _, history = server.ask("GET", f"{base}/history?path=native&limit=1", server.key)
    assert [(one["hash"], one["author"]) for one in history] == [(made["hash"], "Ada")]
    status, said = server.ask("POST", f"{base}/clone", server.key, {**body, "path": "refused", "password": "wrong"})
    assert (status, PASSWORD in said["message"], "uthentication" in said["message"]) == (403, False, True)
