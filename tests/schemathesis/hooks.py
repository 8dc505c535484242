"""Gives most requests something real to be about: a sandbox that runs, a session, a key.

A made-up id would end every request at 404. One in four stays made up.
"""

import itertools
import json
import os
import urllib.error
import urllib.request

import schemathesis

URL, KEY = os.environ["COVE_URL"], os.environ["COVE_API_KEY"]
WEB = 8000  # where a web server listens inside the sandbox
# Answers every method in its own way.
ECHO = f"""
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_GET = do_HEAD = do_OPTIONS = do_PUT = do_POST = do_PATCH = do_DELETE = answer
http.server.ThreadingHTTPServer(("127.0.0.1", {WEB}), Echo).serve_forever()
"""
turns = itertools.count()
kept = {}  # what was made and is still as it should be


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, method=method, data=data)
    request.add_header("Authorization", f"Bearer {KEY}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path} {body}: {error.code} {error.read().decode()}") from None


def tidy(keep):
    """What was made by chance must not use up what the next request needs."""
    for hook in ask("GET", "/api/webhooks"):
        ask("DELETE", f"/api/webhooks/{hook['id']}")
    for sandbox in ask("GET", "/api/sandboxes?limit=1000")["items"]:
        if sandbox["name"] not in keep:
            ask("DELETE", f"/api/sandboxes/{sandbox['id']}")


def sandbox():
    if "sandbox" not in kept:
        small = {"limits": {"memory": 128 << 20, "disk": 64 << 20}, "timers": {"idle_seconds": None}}
        made = ask("POST", "/api/sandboxes", {"name": "box", "if_exists": "ensure_running", **small})["id"]
        serve = {"command": ["python3", "-c", ECHO], "background": True}
        ask("POST", f"/api/sandboxes/{made}/exec", serve)
        up = f"for i in $(seq 100); do : < /dev/tcp/127.0.0.1/{WEB} && exit; sleep 0.05; done 2>/dev/null"
        ask("POST", f"/api/sandboxes/{made}/exec", {"command": ["bash", "-c", up], "timeout_seconds": 20})
        kept["sandbox"] = made
    return kept["sandbox"]


def session():
    if "session" not in kept:
        tidy(keep={"box"})
        kept["session"] = ask("POST", "/api/sessions", {})["session_id"]
    return kept["session"]


REAL = {
    "/sandboxes/{id}": sandbox,
    "/sessions/{id}": session,
    "/files/{session_id}": session,
    "/e2b/files/{session_id}": session,
    "/keys/{id}": lambda: ask("POST", "/api/keys", {"name": "made", "scope": "read"})["id"],
    "/webhooks/{id}": lambda: ask("POST", "/api/webhooks", {"url": "http://127.0.0.1:9/"})["id"],
    "/pools/{": lambda: "base",
    "/templates/{": lambda: "base",
    "/organisations/{id}": lambda: "other",
}


def is_good(case, part):
    """Whether this part of the request was meant to be right."""
    known = case.meta and case.meta.components.get(part)
    return known is None or known.mode.is_positive


@schemathesis.hook
def before_call(context, case, kwargs):
    turn = next(turns)
    path = case.operation.path
    if turn % 50 == 0:
        tidy(keep={"box"})
        kept.pop("session", None)
    # Longer than any maximum of ours, and short enough to come through as a URL at all.
    for name, value in (case.query or {}).items():
        if isinstance(value, str):
            case.query[name] = value[:2000]
    if path.endswith(("/follow", "/watch")) and is_good(case, "query"):
        case.query = {**(case.query or {}), "for_seconds": 0}
    if isinstance(case.body, dict) and is_good(case, "body"):
        small(path, case.body)
    for name, value in (case.path_parameters or {}).items():
        # The limits of the organisation that asks are the test's own.
        if path.startswith("/organisations") and value == "default":
            case.path_parameters[name] = "other"
    if "/proxy" in path and is_good(case, "path") and case.path_parameters:
        case.path_parameters.update(id=sandbox(), port=WEB)
        return
    if turn % 4 == 0:
        return
    for prefix, make in REAL.items():
        if path.startswith(prefix) and is_good(case, "path") and case.path_parameters:
            name = path.split("{")[1].split("}")[0]
            case.path_parameters[name] = make()
    if isinstance(case.body, dict) and "session_id" in case.body and is_good(case, "body"):
        case.body["session_id"] = session()


def small(path, body):
    """Good requests stay so, and cost little: nothing is sent anywhere, nothing runs for long."""
    if path == "/webhooks":
        body["url"] = "http://127.0.0.1:9/"
    if path.startswith("/pools"):
        body["size"] = min(body.get("size") or 0, 1)
    if path.endswith(("/exec", "/execute")):
        body["timeout_seconds"] = 2


# Calls after which the sandbox is not what it was: stopped, renamed, without its web server, gone.
UPSETTING = ("/stop", "/start", "/pause", "/resume", "/archive", "/recover", "/name", "/signal", "/exec", "/limits")


@schemathesis.hook
def after_call(context, case, response):
    path, method = case.operation.path, case.method
    if path.startswith("/sandboxes/{id}") and (path.endswith(UPSETTING) or method == "DELETE"):
        kept.pop("sandbox", None)
    if path.startswith("/sessions/{id}") and method == "DELETE":
        kept.pop("session", None)


@schemathesis.serializer("application/x-tar")
def as_they_are(context, value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()
