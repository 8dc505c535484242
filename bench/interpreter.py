"""First cells and later ones: a fresh sandbox's interpreter, cold and from a warm pool, against starting an ipykernel and `python3 -c pass`.

    bench/interpreter.py [PATH-OF-COVE] [--json FILE]

Everything is measured in one run, in turns, so that the ratios hold whatever else the machine does. The template `code-interpreter` is built
once below $COVE_CACHE; the ipykernel runs in a venv beside it.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

CACHE = pathlib.Path(os.environ.get("COVE_CACHE", pathlib.Path.home() / ".cache/cove"))

KERNEL = """
import time
from jupyter_client.manager import start_new_kernel
began = time.perf_counter()
manager, client = start_new_kernel(kernel_name="python3")
client.execute_interactive("1 + 1", timeout=60, output_hook=lambda message: None)
print((time.perf_counter() - began) * 1000)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""

PLAIN = """
import time
space = {}
for _ in range(999):
    exec("x = 1", space)
began = time.perf_counter()
exec("x = 1", space)
print((time.perf_counter() - began) * 1000)
"""


class Server:
    def __init__(self, program, data):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [program, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(data)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "COVE_LOG": "error"},
        )
        self.wait(lambda: (data / "api-key").exists() and self.is_up(), "a server")
        self.key = (data / "api-key").read_text().strip()

    def is_up(self):
        try:
            return urllib.request.urlopen(f"{self.url}/healthz", timeout=2).status == 200
        except OSError:
            return False

    def wait(self, condition, what, seconds=180):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"error: no {what} within {seconds} s")
            time.sleep(0.02)

    def ask(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api{path}", method=method, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def session(self, template):
        return self.ask("POST", "/sessions", {"environment": template})

    def cell(self, session, code):
        answer = self.ask("POST", "/execute", {"session_id": session["session_id"], "code": code})
        assert not answer.get("error"), answer
        return answer

    def end(self, session):
        self.ask("DELETE", f"/sessions/{session['session_id']}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def took(action):
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def templates(program):
    """Builds the template once; gives its data directory."""
    found = sorted(CACHE.glob("templates-*/templates/code-interpreter.json"), key=os.path.getmtime)
    if found:
        return found[-1].parent.parent
    data = CACHE / "templates-bench"
    subprocess.run([program, "template", "build", "code-interpreter", "--data", str(data)], check=True)
    return data


def kernel_python():
    folder = CACHE / "ipykernel"
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "ipykernel", "jupyter-client"], check=True)
        (folder / "complete").touch()
    return str(python)


def first_cell(server, template, figures, name):
    """Create to first answer."""
    def go():
        session = server.session(template)
        server.cell(session, "1 + 1")
        made.append(session)

    made = []
    figures[name].append(took(go))
    server.end(made[0])


def private_memory(server, session):
    """KiB that each context of the sandbox has for itself, as the kernel counts it (PSS of the process's own pages)."""
    code = "print([line for line in open('/proc/self/smaps_rollup') if line.startswith(('Private_Clean', 'Private_Dirty'))])"
    text = server.cell(session, code)["stdout"]
    return sum(int(word) for word in text.split() if word.isdigit())


def contexts_at_once(server, count):
    """So many Python contexts through E2B's door, each with its first cell; milliseconds for all, and KiB of memory for each."""
    import concurrent.futures

    def door(path, body, headers):
        headers = {"Content-Type": "application/json", "X-API-Key": server.key, **headers}
        request = urllib.request.Request(f"{server.url}/e2b{path}", data=json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    made = json.loads(door("/sandboxes", {"templateID": "code-interpreter", "timeout": 300}, {}))
    sandbox = made["sandboxID"]
    inside = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49999", "X-Access-Token": made.get("envdAccessToken") or ""}
    door("/execute", {"code": "1 + 1"}, inside)
    usage = lambda: server.ask("GET", f"/sandboxes/{sandbox}/metrics")[-1]["memory"]
    before = usage()

    def one(_):
        context = json.loads(door("/contexts", {"language": "python"}, inside))
        said = door("/execute", {"context_id": context["id"], "code": "1 + 1"}, inside)
        assert b'"2"' in said, said

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        all_of_them = took(lambda: list(pool.map(one, range(count))))
    each = (usage() - before) / count / 1024
    server.ask("DELETE", f"/sandboxes/{sandbox}")
    return all_of_them, each


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default=os.environ.get("COVE_BIN", "cove"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    kernel, built = kernel_python(), templates(options.program)
    names = ("python3 -c pass", "ipykernel", "base, cold", "code-interpreter, cold", "code-interpreter, from the pool")
    figures = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="cove-bench-", ignore_cleanup_errors=True) as folder:
        data = pathlib.Path(folder) / "data"
        data.mkdir()
        for name in ("layers", "templates"):
            (data / name).symlink_to(built / name)
        server = Server(options.program, data)
        try:
            full = lambda size: lambda: any(pool["ready"] >= size for pool in server.ask("GET", "/pools"))
            for _ in range(options.runs):
                figures["python3 -c pass"].append(took(lambda: subprocess.run(["/usr/bin/python3", "-c", "pass"], check=True)))
                told = subprocess.run([kernel, "-c", KERNEL], check=True, capture_output=True, text=True)
                figures["ipykernel"].append(float(told.stdout))
                first_cell(server, "base", figures, "base, cold")
                first_cell(server, "code-interpreter", figures, "code-interpreter, cold")
                server.ask("PUT", "/pools/code-interpreter", {"size": 1})
                server.wait(full(1), "full pool")
                first_cell(server, "code-interpreter", figures, "code-interpreter, from the pool")
                server.ask("DELETE", "/pools/code-interpreter")
            session = server.session("code-interpreter")
            for _ in range(999):
                server.cell(session, "x = 1")
            thousandth = statistics.median(took(lambda: server.cell(session, "x = 1")) for _ in range(20))
            memory = private_memory(server, session)
            server.end(session)
            plain = float(subprocess.run(["/usr/bin/python3", "-c", PLAIN], check=True, capture_output=True, text=True).stdout)
            hundred, each = contexts_at_once(server, 100)
        finally:
            server.stop()
            for pool in data.rglob("pool"):
                if os.path.ismount(pool):
                    subprocess.run(["umount", str(pool)], check=True)
    median = {name: statistics.median(values) for name, values in figures.items()}
    result = {
        "first_cell_ms": median,
        "thousandth_cell_ms": thousandth,
        "plain_exec_ms": plain,
        "hundred_contexts_ms": hundred,
        "memory_per_context_kib": each,
        "private_memory_of_a_context_kib": memory,
    }
    print("## First cell of a fresh sandbox, over HTTP\n")
    print("| what | median ms | against ipykernel |\n|---|---|---|")
    for name in names:
        print(f"| {name} | {median[name]:.1f} | {median['ipykernel'] / median[name]:.1f}× |")
    print(f"\nThe 1,000th cell takes {thousandth:.2f} ms over HTTP; a plain exec() of the same {plain:.4f} ms.")
    print(f"100 contexts with a cell each, 16 callers: {hundred:.0f} ms; {each / 1024:.1f} MiB of the sandbox's memory each.")
    print(f"Private memory of a context: {memory / 1024:.1f} MiB.")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
