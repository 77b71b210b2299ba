"""A crew of agents that survives crashes: researcher, analyst, coder, each with a checkpoint of its own.

    durable run functions.workflows.agent_crew:agent_crew --input '{"task": "sort invoices"}' \\
        --run-id crew-7 --session crew-7
    AGENT_CREW_CRASH_AFTER=analyst durable run …      # kills itself after the second agent
    durable workflow resume crew-7                    # where the session stands, and what to run next

Checkpoints are saved where `durable.toml` has `[checkpointing]` with `enabled = true`; the run resumes with
or without them. Without a model id the agents ask a model that is a table of sentences: the same answers on
every machine. With one they ask Bedrock, which needs boto3, a region and credentials.
"""

from __future__ import annotations

import hashlib
import os
import signal
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from durable_core import Context, Retry, current_step, step, workflow

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

CRASH_VARIABLE: Final = "AGENT_CREW_CRASH_AFTER"
ROLES: Final = {
    "researcher": "You collect what has to be known before the task can be done. List facts only.",
    "analyst": "You decide, from the facts, how the task is best done. Name one way and its reason.",
    "coder": "You write the shortest program that does the task in the way that was decided.",
}
_ANSWERS: Final = {
    "researcher": ("The inputs are files.", "The inputs are rows.", "Nothing is known of the inputs."),
    "analyst": ("Do it in one pass.", "Sort first, then go once through.", "Ask for an example."),
    "coder": ("print(sum(map(len, inputs)))", "for one in sorted(inputs): print(one)", "raise SystemExit(2)"),
}


class Turn(BaseModel):
    """What one agent said."""

    agent: str
    text: str


class CrewState(BaseModel):
    """What the crew has come to: handed from agent to agent, and what a checkpoint holds."""

    task: str
    turns: list[Turn] = []


# A model that is busy may answer in a second. It may be asked twice after a crash; it is paid for twice then.
@step(retry=Retry(max_attempts=4, initial_delay_s=1, factor=3, max_delay_s=30), timeout_s=180)
def think(agent: str, state: CrewState, model_id: str | None = None) -> CrewState:
    """Let one agent have its turn."""
    text = _ask_bedrock(agent, state, model_id) if model_id else _ask_table(agent, state)
    return CrewState(task=state.task, turns=[*state.turns, Turn(agent=agent, text=text)])


async def researcher(ctx: Context, state: CrewState, model_id: str | None) -> CrewState:
    """A branch, so that its checkpoints are under its own name; more steps of its own would go in here."""
    return await ctx.step(think, "researcher", state, model_id)


async def analyst(ctx: Context, state: CrewState, model_id: str | None) -> CrewState:
    """The same, for the second agent."""
    return await ctx.step(think, "analyst", state, model_id)


async def coder(ctx: Context, state: CrewState, model_id: str | None) -> CrewState:
    """The same, for the third."""
    return await ctx.step(think, "coder", state, model_id)


@workflow
async def agent_crew(ctx: Context, task: str, model_id: str | None = None) -> CrewState:
    """Let the three have their turns, one after the other."""
    state = CrewState(task=task)
    for agent in (researcher, analyst, coder):
        turn: Coroutine[Any, Any, CrewState] = ctx.branch(agent, state, model_id)
        state = await turn
        _crash_if_asked(agent.__name__)
    return state


def _ask_table(agent: str, state: CrewState) -> str:
    """The local model: an answer chosen by the hash of the question."""
    question = f"{agent}\n{state.model_dump_json()}".encode()
    answers = _ANSWERS[agent]
    return answers[hashlib.sha256(question).digest()[0] % len(answers)]


def _ask_bedrock(agent: str, state: CrewState, model_id: str) -> str:
    from functions.workflows.scanning.llm import open_client  # boto3 is needed from here on only

    said = "\n".join(f"{turn.agent}: {turn.text}" for turn in state.turns)
    reply = open_client().converse(
        modelId=model_id,
        system=[{"text": ROLES[agent]}],
        messages=[{"role": "user", "content": [{"text": f"Task: {state.task}\n{said}"}]}],
        inferenceConfig={"maxTokens": 1000, "temperature": 0.0},
        requestMetadata={"idempotency_key": current_step().idempotency_key},
    )
    return "".join(block.get("text", "") for block in reply["output"]["message"]["content"])


def _crash_if_asked(agent: str) -> None:
    """Dies as a process does that the system kills: to see what a resume makes of it."""
    if os.environ.get(CRASH_VARIABLE) == agent:
        os.kill(os.getpid(), signal.SIGKILL)
