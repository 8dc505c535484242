"""CAMEL's Daytona runtime: a function of this program runs in the sandbox, from a file in /home/daytona."""

from camel.runtimes import DaytonaRuntime
from camel.toolkits import FunctionTool
from story import contains, equal, step


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


with step("create"):
    runtime = DaytonaRuntime().build()
    contains(runtime.info(), "CPU")
with step("code"):
    tool = FunctionTool(multiply)
    runtime.add(tool, "multiply")
    equal(tool.func(6, 7), 42)
with step("delete"):
    runtime.cleanup()
