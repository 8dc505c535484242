"""The TypeScript SDK, by node's own test runner."""

import os
import pathlib
import subprocess

from conftest import ALIAS


def test_the_typescript_sdk(server):
    script = pathlib.Path(__file__).parent / "sdk.test.mjs"
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(script)],
        capture_output=True,
        text=True,
        timeout=290,
        env={**os.environ, "DAYTONA_TEST_IMAGE": ALIAS},
    )
    print(done.stdout[-8000:], done.stderr[-2000:])
    assert done.returncode == 0, done.stdout[-4000:]
