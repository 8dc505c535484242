"""The JavaScript SDK, by node's own test runner."""

import os
import pathlib
import subprocess


def test_the_javascript_sdk(server):
    script = pathlib.Path(__file__).parent / "sdk.test.mjs"
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(script)],
        capture_output=True,
        text=True,
        timeout=290,
        env={**os.environ, "COVE_VERCEL_API": server.api, "COVE_TEST_KEY": server.key, "VERCEL_TELEMETRY_DISABLED": "1"},
    )
    print(done.stdout[-8000:], done.stderr[-2000:])
    assert done.returncode == 0, done.stdout[-4000:]
