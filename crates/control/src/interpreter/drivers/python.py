"""The Python driver: keeps one context alive and runs cells in it.

Started by the guest with a one-line bootstrap that reads this source and its three companions as the first line of standard
input, so nothing lies on the sandbox's disk. Requests follow as JSON lines there, events leave as JSON lines on standard
output; both are moved to private descriptors first, so that the user's code sees an empty standard input and can print, fork and exec as it likes:

    stdin  {"cell": "c1", "code": "6*7", "env": {"K": "V"}}
    stdout {"cell": "c1", "event": "started", "count": 1}
           {"cell": "c1", "event": "stdout", "text": "..."}
           {"cell": "c1", "event": "result", "main": true, "data": {"text/plain": "42"}}
           {"cell": "c1", "event": "error", "name": "...", "value": "...", "traceback": "..."}
           {"cell": "c1", "event": "done"}

IPython's shell runs the cells where it is installed; a plain interpreter does where it is not. Only what every cell
needs is imported here: each import is paid by the first cell. With `zygote` among its companions it does not serve but
stands ready, and each copy of it goes on as a context (zygote.py).
"""

import builtins
import json
import os
import signal
import sys
import threading
import time
import types

# Given by the bootstrap: `sources`, the companions of this file, and `requests`, the buffered reader of standard input.
driver = None
sys.argv[:] = [""]

# A value beyond this is refused with an error rather than sent: the host takes no longer line.
MAX_VALUE = 16 << 20
# Output is gathered for this long, so that a loop of prints is one event and a slow one is still live.
GATHER_SECONDS = 0.05
GATHER_BYTES = 32 << 10


class Channel:
    """The private way to the host. One lock: events from threads and from the capture never mix."""

    def __init__(self, requests):
        self.requests = requests
        self.fd = os.dup(1)
        self.lock = threading.RLock()
        self.cell = None
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)

    def send(self, event, **fields):
        line = json.dumps({"cell": self.cell, "event": event, **fields}, ensure_ascii=True, default=str)
        data = memoryview(line.encode() + b"\n")
        with self.lock:
            while data:
                data = data[os.write(self.fd, data):]


class Stream:
    """Stands in for sys.stdout or sys.stderr: gathers text and sends it as events."""

    encoding = "utf-8"
    errors = "replace"
    newlines = None
    closed = False
    mode = "w"

    def __init__(self, output, name, fd):
        self.output, self.name, self._fd = output, name, fd
        self.buffer = RawStream(self)

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.output.put(self, text)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        self.output.flush()

    def fileno(self):
        return self._fd

    def isatty(self):
        return False

    def readable(self):
        return False

    def writable(self):
        return True

    def seekable(self):
        return False

    def reconfigure(self, **options):
        pass

    def close(self):
        self.flush()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.flush()


class RawStream:
    """sys.stdout.buffer: bytes, decoded as they come."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, data):
        self.stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def flush(self):
        self.stream.flush()

    def fileno(self):
        return self.stream.fileno()


class Output:
    """Both streams in the order they were written; a change of stream sends what was gathered."""

    def __init__(self, channel):
        self.channel = channel
        self.lock = threading.RLock()
        self.parts, self.size, self.current = [], 0, None
        self.wake = threading.Event()
        self.forked = False
        self.stdout = Stream(self, "stdout", 1)
        self.stderr = Stream(self, "stderr", 2)

    def put(self, stream, text):
        if self.forked:  # a child of the user's: its words go by the descriptor, the parent gathers them there
            os.write(stream._fd, text.encode("utf-8", "replace"))
            return
        if not text:
            return
        with self.lock:
            if self.current is not stream:
                self.flush()
                self.current = stream
            self.parts.append(text)
            self.size += len(text)
            if self.size >= GATHER_BYTES:
                self.flush()
        if not self.wake.is_set():
            self.wake.set()

    def flush(self):
        with self.lock:
            if self.parts:
                text = "".join(self.parts)
                self.parts, self.size = [], 0
                for start in range(0, len(text), 1 << 18):
                    self.channel.send(self.current.name, text=text[start:start + (1 << 18)])

    def tick(self):
        """Sends what a quiet cell left behind; runs in a thread of its own, asleep while there is nothing."""
        while True:
            self.wake.wait()
            time.sleep(GATHER_SECONDS)
            self.wake.clear()
            self.flush()


class Capture:
    """Descriptors 1 and 2 as pipes: what subprocesses and C code write becomes events too."""

    def __init__(self, output):
        self.output = output
        self.sources = []
        for stream in (output.stdout, output.stderr):
            reading, writing = os.pipe()
            os.dup2(writing, stream._fd)
            os.close(writing)
            os.set_blocking(reading, False)
            self.sources.append((reading, stream))

    def drain(self):
        """Takes what lies in the pipes now."""
        for fd, stream in self.sources:
            while True:
                try:
                    data = os.read(fd, 1 << 16)
                except BlockingIOError:
                    break
                if not data:
                    break
                self.output.put(stream, data.decode("utf-8", "replace"))

    def pump(self):
        import select

        poll = select.poll()
        for fd, _ in self.sources:
            poll.register(fd, select.POLLIN)
        while True:
            poll.poll()
            with self.output.lock:
                self.drain()


class Driver:
    def __init__(self, requests):
        self.channel = Channel(requests)
        self.output = Output(self.channel)
        self.capture = Capture(self.output)
        self.pid = os.getpid()
        self.count = 0
        self.errored = False
        sys.stdout = sys.__stdout__ = self.output.stdout
        sys.stderr = sys.__stderr__ = self.output.stderr
        self.threads_started = False
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def _before_fork(self):
        self.output.flush()

    def _after_fork(self):
        self.output.forked = True
        self.output.lock = threading.RLock()
        self.output.parts = []

    def start_threads(self):
        """After the first cell has its code running in a fraction less: only output that lingers needs them."""
        if not self.threads_started:
            self.threads_started = True
            threading.Thread(target=self.output.tick, name="cove-output", daemon=True).start()
            threading.Thread(target=self.capture.pump, name="cove-capture", daemon=True).start()

    def display(self, data, main=False):
        """One result, as MIME type to value; what is too large is refused by name."""
        kept, refused = {}, []
        for kind, value in data.items():
            if value is None:
                continue
            if isinstance(value, bytes):
                import base64

                value = base64.b64encode(value).decode()
            size = len(value) if isinstance(value, str) else len(json.dumps(value, default=str))
            if size > MAX_VALUE:
                refused.append((kind, size))
            else:
                kept[kind] = value
        with self.output.lock:
            self.capture.drain()
            self.output.flush()
        if kept:
            self.channel.send("result", main=main, data=kept)
        if refused and not kept:
            kind, size = refused[0]
            self.error(
                "ResultTooLarge",
                f"the {kind} form of the result has {size} bytes, over the limit of {MAX_VALUE}: "
                "write it to a file, or show less of it",
                "",
            )

    def error(self, name, value, trace):
        if self.errored:
            return
        self.errored = True
        self.output.flush()
        self.channel.send("error", name=name, value=value[:1 << 20], traceback=trace[:1 << 20])

    def serve(self, shell):
        """One request after the other until the host closes."""
        for line in self.channel.requests:
            request = json.loads(line)
            self.channel.cell, self.errored = request["cell"], False
            saved = {}
            for key, value in (request.get("env") or {}).items():
                saved[key] = os.environ.get(key)
                os.environ[key] = value
            self.count += 1
            self.channel.send("started", count=self.count)
            self.start_threads()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                try:
                    shell.run(request["code"], self.count)
                finally:
                    if os.getpid() != self.pid:
                        os._exit(0)  # a fork that ran to the end of the cell ends with it
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                if "cove_figures" in sys.modules:
                    FIGURES().after_cell()
            except BaseException as failure:  # an interrupt in the gap, or a broken hook: the context must go on
                self.error(type(failure).__name__, str(failure), "")
            with self.output.lock:
                self.capture.drain()
                self.output.flush()
            for key, value in saved.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value
            self.channel.send("done")
            self.channel.cell = None


class PlainShell:
    """A context without IPython: the last expression is the result, top-level await works."""

    def __init__(self):
        import ast

        self.ast, self.loop = ast, None
        self.flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        module = types.ModuleType("__main__")
        module.__builtins__ = builtins
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.namespace["display"] = self.display

    def display(self, *objects):
        for value in objects:
            driver.display(FORMAT(value))

    def run(self, code, count):
        name = f"<cell {count}>"
        try:
            tree = self.ast.parse(code, name)
            last = None
            if tree.body and isinstance(tree.body[-1], self.ast.Expr) and not code.rstrip().endswith(";"):
                last = self.ast.Expression(tree.body.pop().value)
            self._remember(code, name)
            self._execute(compile(tree, name, "exec", self.flags))
            if last is not None:
                value = self._execute(compile(last, name, "eval", self.flags))
                if value is not None:
                    self.namespace["_"] = value
                    driver.display(FORMAT(value), main=True)
        except BaseException as failure:
            self.report(failure, code)

    def _execute(self, code):
        value = eval(code, self.namespace)
        if code.co_flags & 0x80:  # CO_COROUTINE: the cell awaits
            import asyncio

            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            value = self.loop.run_until_complete(value)
        return value

    def _remember(self, code, name):
        import linecache

        linecache.cache[name] = (len(code), None, [line + "\n" for line in code.splitlines()], name)

    def report(self, failure, code):
        import traceback

        value = str(failure)
        if isinstance(failure, SyntaxError) and code.lstrip()[:1] in ("!", "%"):
            value += " (`!` and `%` lines need IPython in the template: pip install ipython)"
        trace = failure.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(failure), failure, trace))
        driver.error(type(failure).__name__, value, text)


REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def plain_format(value):
    """What IPython's formatters would give, for a template without IPython."""
    data = {"text/plain": repr(value)}
    kind = type(value)
    for method, mime in REPRESENTATIONS:
        render = getattr(kind, method, None)
        if render is not None:
            try:
                rendered = render(value)
            except Exception:
                continue
            data[mime] = rendered[0] if isinstance(rendered, tuple) else rendered
    bundle = getattr(kind, "_repr_mimebundle_", None)
    if bundle is not None:
        try:
            found = bundle(value, include=None, exclude=None)
            data.update(found[0] if isinstance(found, tuple) else found)
        except Exception:
            pass
    return data


def enrich(value, data):
    """Adds what no object says of itself: JSON of lists and dicts, a table's columns, a figure's image and chart."""
    if isinstance(value, (list, dict)) and "application/json" not in data:
        try:
            text = json.dumps(value, allow_nan=False)
            if len(text) <= MAX_VALUE:
                data["application/json"] = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            pass
    elif "pandas" in sys.modules or "matplotlib.figure" in sys.modules:
        FIGURES().enrich(value, data)
    return data


def FORMAT(value):
    return enrich(value, plain_format(value))


def FIGURES():
    """The module that knows matplotlib, pandas and PIL, made when one of them is first seen."""
    if "cove_figures" not in sys.modules:
        module = types.ModuleType("cove_figures")
        module.driver, module.charts_source, module.enrich_value = driver, sources["charts"], enrich
        sys.modules["cove_figures"] = module
        exec(compile(sources["figures"], "<cove figures>", "exec"), module.__dict__)
    return sys.modules["cove_figures"]


class FigureFinder:
    """Hooks two imports: matplotlib gets a backend that shows figures as results, PIL.Image.save shows what it saves."""

    hooked = {"cove_matplotlib", "PIL.Image"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.hooked:
            return FIGURES().find_spec(name, path, cls)
        return None


def refuse_input(prompt=""):
    raise RuntimeError(
        "input() cannot be answered here: nobody sits at this interpreter. Pass the value in the code or as an "
        "environment variable"
    )


def have_ipython():
    from importlib.machinery import PathFinder

    return PathFinder.find_spec("IPython") is not None


def make_shell():
    """What runs the cells. It needs no driver yet, so that a zygote makes it once for all its copies."""
    if not have_ipython():
        return PlainShell()
    module = types.ModuleType("cove_ipython")
    module.driver, module.enrich = None, enrich
    sys.modules["cove_ipython"] = module
    exec(compile(sources["ipython"], "<cove ipython>", "exec"), module.__dict__)
    return module.Shell()


def begin(requests):
    global driver
    driver = Driver(requests)
    for name in ("cove_ipython", "cove_figures"):
        if name in sys.modules:
            sys.modules[name].driver = driver
    builtins.input = refuse_input
    os.environ.setdefault("MPLBACKEND", "module://cove_matplotlib")
    driver.channel.send("ready", python=sys.version.split()[0], shell=type(shell).__name__)
    driver.serve(shell)


signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, FigureFinder)
shell = make_shell()
if "zygote" in sources:
    exec(compile(sources["zygote"], "<cove zygote>", "exec"))
    requests = stand_ready(sources["preload"])
begin(requests)
