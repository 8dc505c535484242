#!/usr/bin/env python3
"""How long a person waits who uses the Python SDK: create, run `echo hi`, kill; and each of the three alone.

Needs a running server and the E2B_* variables. `e2b_sdk.py [ROUNDS] [LABEL]` prints one JSON object
with the milliseconds of every round. The first rounds warm
the client's own connections and are not counted. Whether sandboxes come from a warm pool is the server's business:
run it once against a server without a pool and once against one with, and give each run its label.
"""

import json
import sys
import time

from e2b import Sandbox

UNCOUNTED = 3


def once():
    times = [time.perf_counter()]
    sandbox = Sandbox.create(timeout=60)
    times.append(time.perf_counter())
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    times.append(time.perf_counter())
    assert sandbox.kill()
    times.append(time.perf_counter())
    create, run, kill = (after - before for before, after in zip(times, times[1:]))
    return {"create": create, "run": run, "kill": kill, "whole": times[-1] - times[0]}


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    label = sys.argv[2] if len(sys.argv) > 2 else "cold"
    measured = [once() for _ in range(rounds + UNCOUNTED)][UNCOUNTED:]
    told = {"label": label, "rounds": rounds}
    for step in ("create", "run", "kill", "whole"):
        told[step] = [round(each[step] * 1000, 3) for each in measured]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
