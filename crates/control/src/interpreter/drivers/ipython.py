"""The IPython side of the Python driver: InteractiveShell with its display, errors and subprocesses led to the driver."""

import os
import subprocess
import sys

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

core = core  # given by python.py


class Formatter(DisplayFormatter):
    def format(self, value, include=None, exclude=None):
        data, metadata = super().format(value, include=include, exclude=exclude)
        return core.companion("formats").enrich(value, dict(data)), metadata


class Results(DisplayHook):
    """The last expression's value."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        core.driver.display(format_dict, main=True)

    def finish_displayhook(self):
        pass


class Displays(DisplayPublisher):
    """What display() and libraries show on the way."""

    def publish(self, data, metadata=None, source=None, **options):
        core.driver.display(data)

    def clear_output(self, wait=False):
        pass


class CoveShell(InteractiveShell):
    displayhook_class = Type(Results)
    display_pub_class = Type(Displays)

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def _showtraceback(self, etype, evalue, stb):
        core.driver.error(getattr(etype, "__name__", str(etype)), str(evalue), "\n".join(stb))

    def system(self, command):
        """`!command`: its output in the order it comes, its exit code in _exit_code."""
        command = self.var_expand(command, depth=1)
        sys.stdout.flush()
        process = subprocess.Popen(
            command, shell=True, executable=os.environ.get("SHELL") or "/bin/sh",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        try:
            while chunk := process.stdout.read1(1 << 16):
                sys.stdout.write(chunk.decode("utf-8", "replace"))
            code = process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            raise
        self.user_ns["_exit_code"] = code

    system_piped = system_raw = system


class Shell:
    def __init__(self):
        config = Config()
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.history_length = 0
        config.HistoryManager.enabled = False
        config.DisplayFormatter.active_types = [
            "text/plain", "text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg",
            "application/pdf", "text/latex", "application/json", "application/javascript",
        ]
        config.PlainTextFormatter.max_seq_length = 0
        self.shell = CoveShell.instance(config=config)
        self.shell.separate_in = ""
        # `__main__` is the user's, so that what it defines can be pickled.
        sys.modules["__main__"] = self.shell.user_module

    def moved(self):
        """In a copy of a zygote: the directory is another than that at the start."""
        self.shell.user_ns["_dh"][:] = [os.getcwd()]

    def run(self, code, count):
        result = self.shell.run_cell(code, store_history=True)
        failure = result.error_before_exec or result.error_in_exec
        if isinstance(failure, SystemExit):
            core.driver.error("SystemExit", str(failure), "")
        elif isinstance(failure, BaseException):  # one that IPython showed in its own way, or not at all
            core.driver.error(type(failure).__name__, str(failure), "")
