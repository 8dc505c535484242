"""The driver for Jupyter kernels that the template brings along (R, Java, Julia …): jupyter_client speaks to the kernel,
this turns its messages into the Python driver's events."""

import json
import os
import queue
import signal
import sys

fd = os.dup(1)
os.dup2(2, 1)


def send(cell, event, **fields):
    data = memoryview(json.dumps({"cell": cell, "event": event, **fields}, default=str).encode() + b"\n")
    while data:
        data = data[os.write(fd, data):]


def complain(name, value):
    """Without a kernel every cell gets the same clear answer."""
    for line in requests:
        cell = json.loads(line)["cell"]
        send(cell, "started", count=0)
        send(cell, "error", name=name, value=value, traceback="")
        send(cell, "done")
    sys.exit(0)


name = sources["kernel"]
try:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from jupyter_client.manager import KernelManager
except ImportError:
    complain("NoKernel", f"language {name} needs a Jupyter kernel, and this template has no jupyter_client: pip install jupyter_client")

known = KernelSpecManager().find_kernel_specs()
aliases = {"r": "ir", "java": "java", "julia": "julia"}
kernel = next((k for k in known if k.lower() in (name, aliases.get(name))), None)
if kernel is None:
    complain("NoKernel", f"this template has no Jupyter kernel for {name}; it has: {', '.join(sorted(known)) or 'none'}")

manager = KernelManager(kernel_name=kernel)
manager.start_kernel(cwd=os.getcwd())
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
signal.signal(signal.SIGINT, lambda *_: manager.interrupt_kernel())
send(None, "ready")

count = 0
for line in requests:
    request = json.loads(line)
    cell = request["cell"]
    count += 1
    send(cell, "started", count=count)
    message = client.execute(request["code"], allow_stdin=False)
    while True:
        try:
            answer = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            if manager.is_alive():
                continue
            send(cell, "error", name="ContextDied", value=f"the {name} kernel died and was started anew", traceback="")
            manager.restart_kernel(now=True)
            client.wait_for_ready(timeout=60)
            break
        if answer["parent_header"].get("msg_id") != message:
            continue
        kind, content = answer["msg_type"], answer["content"]
        if kind == "stream":
            send(cell, content["name"], text=content["text"])
        elif kind in ("execute_result", "display_data"):
            send(cell, "result", main=kind == "execute_result", data=content["data"])
        elif kind == "error":
            send(cell, "error", name=content["ename"], value=content["evalue"], traceback="\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            break
    send(cell, "done")
