"""The example crew: killed after its second agent, and gone on with by the session's id."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durable_core import Checkpointer, CheckpointingConfig
from functions.workflows import agent_crew
from functions.workflows.agent_crew import CRASH_VARIABLE, CrewState, Turn, think
from tests.e2e.programs.nursery import ROOT
from tests.stores import Place

ON = CheckpointingConfig(enabled=True)
TASK = "sort the invoices"


@pytest.mark.over_dynamodb
async def test_each_agent_leaves_its_state_under_its_own_name(place: Place) -> None:
    executor = place.executor(checkpointing=ON)
    result = await executor.run(agent_crew.agent_crew, session_id="crew-7", task=TASK)
    checkpointer = Checkpointer(ON, executor.store)
    found = checkpointer.list("crew-7")
    assert [(one.agent_id, one.step_id) for one in found] == [
        ("coder", "coder/think"),
        ("analyst", "analyst/think"),
        ("researcher", "researcher/think"),
    ]
    assert [turn.agent for turn in result.output.turns] == ["researcher", "analyst", "coder"]
    assert found[0].state == result.output
    assert checkpointer.replay("crew-7", "analyst/think", think).equal


@pytest.mark.slow
def test_a_crew_that_was_killed_is_gone_on_with_by_its_session(tmp_path: Path) -> None:
    (tmp_path / "durable.toml").write_text("[checkpointing]\nenabled = true\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DURABLE_STORE": f"sqlite:///{tmp_path}/runs.db"}

    def durable(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "durable_core.cli", *args],
            cwd=tmp_path,
            env={**environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    run = ("run", "functions.workflows.agent_crew:agent_crew", "--input", json.dumps({"task": TASK}))
    whole = durable(*run, "--run-id", "whole", "--json")
    killed = durable(*run, "--run-id", "crew-7", "--session", "crew-7", **{CRASH_VARIABLE: "analyst"})
    assert killed.returncode == -signal.SIGKILL
    told = durable("workflow", "resume", "crew-7").stdout.splitlines()
    assert told[:3] == ["session: crew-7", "agent: analyst", "step: analyst/think"]
    then = told[-1].removeprefix("next: durable ").replace("MODULE", "functions.workflows.agent_crew")
    resumed = durable(*shlex.split(then), "--json")
    assert resumed.returncode == 0, resumed.stderr
    outputs: list[Any] = [json.loads(done.stdout)["output"] for done in (whole, resumed)]
    assert outputs[0] == outputs[1]
    listed = json.loads(durable("checkpoint", "list", "crew-7", "--json").stdout)["checkpoints"]
    assert [one["agent_id"] for one in listed] == ["coder", "analyst", "researcher"]


def test_with_a_model_id_the_agents_ask_bedrock(monkeypatch: pytest.MonkeyPatch) -> None:
    from durable_core.current import StepInfo, here
    from functions.workflows.scanning import llm

    asked: list[dict[str, Any]] = []

    class Client:
        def converse(self, **request: Any) -> dict[str, Any]:
            asked.append(request)
            return {"output": {"message": {"content": [{"text": "In one "}, {"text": "pass."}]}}}

    monkeypatch.setattr(llm, "open_client", Client)
    token = here.set(StepInfo("r", 1, "think", 1, "k" * 64, 0))
    try:
        before = CrewState(task=TASK, turns=[Turn(agent="researcher", text="Rows.")])
        state = think("analyst", before, "model-1")
    finally:
        here.reset(token)
    assert state.turns[-1] == Turn(agent="analyst", text="In one pass.")
    (request,) = asked
    assert request["modelId"] == "model-1"
    assert request["requestMetadata"] == {"idempotency_key": "k" * 64}
    assert "Rows." in request["messages"][0]["content"][0]["text"]
