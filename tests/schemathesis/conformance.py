"""A server of its own, what the requests are about, schemathesis, and a last line with the numbers."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).parent
KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
LONG = bool(os.environ.get("COVE_LONG"))

# Sandboxes are as small as they can be, and few: what is made by chance must not weigh anything.
SMALL = {
    "cpus_per_sandbox": 1,
    "memory_per_sandbox": 256 << 20,
    "disk_per_sandbox": 128 << 20,
    "running_sandboxes": 12,
    "sandboxes": 24,
    "requests_per_second": 100_000,
}


class Server:
    def __init__(self, program, folder):
        self.data = folder / "data"
        self.said = folder / "stdout"
        self.log = folder / "log"
        environment = {**os.environ, "COVE_API_KEY": KEY, "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [program, "serve", "--listen", "127.0.0.1:0", "--data", str(self.data)],
            stdout=open(self.said, "w"), stderr=open(self.log, "w"), env=environment,
        )
        self.url = self.wait_for(self.address, "its address")
        self.wait_for(lambda: self.ask("GET", "/healthz")[0] == 200, "/healthz")

    def wait_for(self, condition, what):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.process.poll() is not None:
                sys.exit(f"error: the server ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}")
            if found := condition():
                return found
            time.sleep(0.05)
        sys.exit(f"error: no sign of {what} within 60 s:\n{self.log.read_text()[-4000:]}")

    def address(self):
        text = self.said.read_text()
        return "http://" + text.split("http://")[1].split()[0] if "http://" in text and "\n" in text else None

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data)
        request.add_header("Authorization", f"Bearer {KEY}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                raw, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            raw, status = error.read(), error.code
        except OSError:
            return 0, None
        try:
            return status, json.loads(raw) if raw else None
        except ValueError:
            return status, raw

    def stop(self):
        status, page = self.ask("GET", "/api/sandboxes?limit=1000")
        for sandbox in page["items"] if status == 200 else []:
            self.ask("DELETE", f"/api/sandboxes/{sandbox['id']}")
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # The disks of sandboxes outlive the server on purpose; these have no owner any more.
        for pool in self.data.rglob("pool"):
            if os.path.ismount(pool):
                subprocess.run(["umount", str(pool)], check=True)


def numbers(report):
    """Operations that passed and that did not."""
    cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases) - len(bad), len(bad)


def check_metrics(server):
    """What is wrong with /metrics, as Prometheus' own parser reads it."""
    from prometheus_client.parser import text_string_to_metric_families

    status, page = server.ask("GET", "/metrics")
    if status != 200:
        return [f"status {status}"]
    try:
        families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    except ValueError as error:
        return [str(error)]
    wanted = {"cove_sandboxes", "cove_jobs", "cove_capacity_sandboxes", "cove_http_requests", "cove_http_request_duration_seconds"}
    problems = [f"no {name}" for name in wanted - families.keys()]
    answered = sum(sample.value for sample in families["cove_http_requests"].samples) if not problems else 1000
    return problems if answered >= 500 else [*problems, f"only {answered} requests were counted"]


def main():
    program, schemathesis, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="cove-schemathesis-", ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        server = Server(program, folder)
        try:
            server.ask("PUT", "/api/organisations/default/quota", SMALL)
            report = folder / "report.xml"
            phases = "examples,coverage,fuzzing" + (",stateful" if LONG else "")
            command = [
                schemathesis, "--config-file", str(HERE / "schemathesis.toml"), "run", f"{server.url}/api/openapi.json",
                "--phases", phases, "--max-examples", "200" if LONG else "6", "--seed", "7",
                "--generation-deterministic", "--report", "junit",
                "--report-junit-path", str(report), *arguments,
            ]
            environment = {**os.environ, "COVE_URL": server.url, "COVE_API_KEY": KEY, "PYTHONPATH": str(HERE)}
            status = subprocess.run(command, env={**environment, "SCHEMATHESIS_HOOKS": "hooks"}, cwd=folder).returncode
            passed, failed = numbers(report) if report.exists() else (0, 1)
            metrics = check_metrics(server)
            log = server.log.read_text()
        finally:
            server.stop()
    faults = [line for line in log.splitlines() if " ERROR " in line or "panicked" in line]
    for line in faults[:20]:
        print(f"the server's log: {line}")
    for problem in metrics:
        print(f"the metrics: {problem}")
    passed, failed = passed + (not metrics) + (not faults), failed + bool(metrics) + bool(faults)
    if status and not failed:
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
