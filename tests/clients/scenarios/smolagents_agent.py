"""smolagents: an agent whose code runs in E2B; its model is a script of ours."""

from smolagents import CodeAgent
from smolagents.models import ChatMessage, Model
from story import contains, equal, step

CELLS = ["x = 6\nprint('kept', x)", "open('/tmp/notes.txt', 'w').write('hi')", "final_answer(x * 7)"]


class Scripted(Model):
    """Says one cell after the other, in the marks that the agent asks for."""

    def __init__(self):
        super().__init__()
        self.model_id, self.turn, self.seen, self.marks = "scripted", 0, [], ("```py", "```")

    def generate(self, messages, *args, **kwargs):
        self.seen.append(str(messages))
        cell = CELLS[min(self.turn, len(CELLS) - 1)]
        self.turn += 1
        begin, end = self.marks
        text = f"Thought: the next cell.\nCode:\n{begin}\n{cell}\n{end}<end_code>"
        return ChatMessage(role="assistant", content=text)

    __call__ = generate


model = Scripted()
with step("create"):
    agent = CodeAgent(tools=[], model=model, executor_type="e2b", max_steps=4)
    model.marks = getattr(agent, "code_block_tags", None) or model.marks
with step("code"):
    equal(agent.run("Multiply."), 42)
    contains(model.seen[1], "kept 6")
with step("delete"):
    end = getattr(agent, "cleanup", None) or agent.python_executor.cleanup
    end()
