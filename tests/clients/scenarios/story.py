"""What a scenario reports: one line of JSON for each step, as it ends.

A step that fails is reported and the next one is tried, so that one run shows all that is wrong. Without a sandbox there is
nothing to try: a failed `create` ends the scenario.
"""

import contextlib
import json
import os
import sys

# The packages' own log lines and warnings go to stderr; stdout belongs to the reports.
REPORTS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

FILE = "notes.txt"
TEXT = "first line\nsecond line: ü\n"


@contextlib.contextmanager
def step(name):
    error = None
    try:
        yield
    except Exception as caught:
        import traceback

        traceback.print_exc()
        error = f"{type(caught).__name__}: {caught}"
    print(json.dumps({"step": name, "error": error}), file=REPORTS)
    if error and name == "create":
        sys.exit(1)


def equal(seen, wanted):
    if seen != wanted:
        raise AssertionError(f"saw {seen!r}, wanted {wanted!r}")


def contains(seen, wanted):
    if wanted not in seen:
        raise AssertionError(f"{wanted!r} is not in {seen!r}")
