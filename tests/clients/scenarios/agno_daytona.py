"""Agno's Daytona toolkit, called as its agent calls it. It works in /home/daytona."""

from agno.agent import Agent
from agno.tools.daytona import DaytonaTools
from story import FILE, TEXT, contains, equal, step

agent = Agent()
with step("create"):
    tools = DaytonaTools(persistent=True)
    equal(tools.run_code(agent, "print(6 * 7)").strip(), "42")
with step("command"):
    equal(tools.run_shell_command(agent, "pwd").strip(), "/home/daytona")
with step("write and read"):
    contains(tools.create_file(agent, FILE, TEXT), FILE)
    equal(tools.read_file(agent, FILE).strip(), TEXT.strip())
with step("list files"):
    contains(tools.list_files(agent), FILE)
with step("delete"):
    tools.daytona.delete(tools.daytona.get(agent.session_state["sandbox_id"]))
