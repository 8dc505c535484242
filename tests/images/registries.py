"""Registries: a real one, one that breaks off, one that lies, and one that takes whatever is pushed."""

import base64
import http.client
import http.server
import os
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.request

from images import MANIFEST, digest
from server import free_port, wait_for

DAEMONS = pathlib.Path(os.environ["COVE_DAEMONS"])


class Registry:
    """Debian's docker-registry on loopback. With `people`, only they may pull and push."""

    def __init__(self, folder, people=None):
        folder.mkdir()
        self.port, self.people = free_port(), people or {}
        self.host = f"127.0.0.1:{self.port}"
        lines = ["version: 0.1", f"storage: {{filesystem: {{rootdirectory: {folder}/content}}}}", f"http: {{addr: {self.host}}}"]
        if self.people:
            # bcrypt, which the registry asks for, by the system's own crypt(3).
            hashed = "print crypt($ARGV[0], q($2b$05$abcdefghijklmnopqrstuu))"
            words = {name: subprocess.check_output(["perl", "-e", hashed, word], text=True) for name, word in self.people.items()}
            (folder / "people").write_text("".join(f"{name}:{word}\n" for name, word in words.items()))
            lines.append(f"auth: {{htpasswd: {{realm: test, path: {folder}/people}}}}")
        (folder / "config.yml").write_text("\n".join(lines) + "\n")
        self.log = open(folder / "log", "w")
        command = [DAEMONS / "usr/bin/docker-registry", "serve", folder / "config.yml"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        wait_for(lambda: self.asked("GET", "/v2/")[0] in (200, 401), 20, f"the registry (see {self.log.name})")

    def asked(self, method, path, body=None, **headers):
        """The status and where it leads."""
        if self.people:
            word = ":".join(next(iter(self.people.items())))
            headers["Authorization"] = "Basic " + base64.b64encode(word.encode()).decode()
        url = path if path.startswith("http") else f"http://{self.host}{path}"
        request = urllib.request.Request(url, method=method, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers.get("Location")
        except urllib.error.HTTPError as error:
            return error.code, None
        except OSError:
            return 0, None

    def push(self, name, tag, image):
        """As it is, byte for byte: Debian's tools would compress it their way. Returns `host/name:tag`."""
        for blob, data in image.blobs.items():
            status, place = self.asked("POST", f"/v2/{name}/blobs/uploads/", b"")
            assert status == 202, status
            joint = "&" if "?" in place else "?"
            kind = {"Content-Type": "application/octet-stream"}
            assert self.asked("PUT", f"{place}{joint}digest={blob}", data, **kind)[0] == 201, blob
        return self.tag(name, tag, image.manifest, MANIFEST)

    def uploads(self):
        """How many blobs were sent to it so far."""
        self.log.flush()
        said = pathlib.Path(self.log.name).read_text()
        return sum("PUT" in line and "/blobs/uploads/" in line and "response completed" in line for line in said.splitlines())

    def tag(self, name, tag, document, kind):
        status, _ = self.asked("PUT", f"/v2/{name}/manifests/{tag}", document, **{"Content-Type": kind})
        assert status == 201, status
        return f"{self.host}/{name}:{tag}"

    def end(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


class Listener(http.server.ThreadingHTTPServer):
    """Something of the test's own that speaks HTTP on loopback."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, client_address):
        """A peer that goes away is what these are for."""

    def end(self):
        self.shutdown()
        self.server_close()


class Breaking(Listener):
    """In front of a real registry: each layer's connection is cut after `after` bytes, `times` times; or is slow."""

    def __init__(self, registry, after=None, times=0, slowly=0.0):
        self.registry, self.after, self.left, self.slowly, self.ranges = registry, after, times, slowly, []
        self.lock = threading.Lock()
        super().__init__(Broken)


class Broken(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server = self.server
        # A header may be there more than once.
        sent = {name: ", ".join(self.headers.get_all(name)) for name in set(self.headers) if name.lower() != "host"}
        behind = http.client.HTTPConnection(server.registry.host, timeout=30)
        behind.request(self.command, self.path, headers=sent)
        answer = behind.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        body, is_blob = answer.read(), "/blobs/" in self.path
        with server.lock:
            is_cut = is_blob and server.left > 0 and server.after is not None and len(body) > server.after
            server.left -= is_cut
            if is_blob:
                server.ranges.append(self.headers["Range"])
        if is_blob and server.slowly:
            piece = max(1, len(body) // 20)
            for at in range(0, len(body), piece):
                self.wfile.write(body[at : at + piece])
                time.sleep(server.slowly / 20)
            return
        self.wfile.write(body[: server.after] if is_cut else body)
        if is_cut:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)


class Lying(Listener):
    """A stranger's registry: whatever was put at a path is what it says, whatever its digest."""

    def __init__(self):
        self.said, self.asked = {}, []
        super().__init__(Liar)

    def put(self, name, tag, image, manifest=None, **instead):
        """An image; `manifest` is another document for it, `instead` bytes or an endless source for a blob by its digest."""
        document = image.manifest if manifest is None else manifest
        for reference in (tag, digest(document)):
            self.said[f"/v2/{name}/manifests/{reference}"] = document
        for blob, data in {**image.blobs, **instead}.items():
            self.said[f"/v2/{name}/blobs/{blob}"] = data
        return f"{self.host}/{name}:{tag}"


class Liar(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.asked.append(self.path)
        said = self.server.said.get(self.path)
        if self.path == "/v2/":
            said = b"{}"
        if callable(said):
            return said(self)
        self.send_response(404 if said is None else 200)
        self.send_header("Content-Length", str(len(said or b"")))
        self.send_header("Content-Type", MANIFEST)
        if said is not None and "/manifests/" in self.path:
            self.send_header("Docker-Content-Digest", digest(said))
        self.end_headers()
        if self.command == "GET" and said:
            self.wfile.write(said)


class Grasping(Listener):
    """A stranger's registry that takes what is pushed and keeps nothing. `instead` has other answers, by method and a part of the path."""

    def __init__(self):
        self.instead, self.asked = {}, []
        super().__init__(Grasper)


class Grasper(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def tell(self, status, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self):
        self.server.asked.append((self.command, self.path, dict(self.headers)))
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        for (method, part), answer in self.server.instead.items():
            if self.command == method and part in self.path:
                return answer(self)
        if self.command == "POST":
            return self.tell(202, Location="/v2/x/blobs/uploads/1")
        self.tell({"GET": 200, "HEAD": 404}.get(self.command, 201))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_GET


def endless(handler):
    """A body without a length and without an end."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.close_connection = True
    try:
        while True:
            handler.wfile.write(b"\0" * 65536)
    except OSError:
        return
