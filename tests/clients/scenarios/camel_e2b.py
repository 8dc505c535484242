"""CAMEL's E2B interpreter."""

from camel.interpreters import E2BInterpreter
from story import contains, step

with step("create"):
    interpreter = E2BInterpreter(require_confirm=False)
with step("code"):
    interpreter.run("x = 6", "python")
    contains(interpreter.run("x * 7", "python"), "42")
with step("command"):
    contains(interpreter.run("echo hi", "bash"), "hi")
with step("delete"):
    interpreter._sandbox.kill()
