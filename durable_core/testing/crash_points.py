"""The crash points of a workflow of yours, for tests of yours: see `durable_core.testing.crash_points`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from durable_core.testing.crash_trials import SIMULATED_MODES, Act, Trials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from durable_core.engine.executor import DurableWorkflowExecutor
    from durable_core.testing.durable_writes import Write
    from durable_core.testing.simulated_process import Mode
    from durable_core.workflow import Workflow

RUN_ID: Final = "crash-test"


@dataclass(frozen=True, slots=True)
class Subject:
    """A workflow that is tried.

    Attributes:
        inputs: By name.
        events: What it waits for: by name one payload, or a list of them.
        modes: What happens to its process.
    """

    workflow: Workflow[..., Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    events: Mapping[str, Any] = field(default_factory=dict)
    modes: Sequence[Mode] = SIMULATED_MODES

    def trials(self) -> Trials:
        """Runs it once, undisturbed, to see which writes there are.

        Raises:
            DurableError: It fails already without a crash.
        """
        return Trials(Act(self._run, RUN_ID))

    def points(self) -> list[CrashPoint]:
        """All of its crash points."""
        trials = self.trials()
        return [CrashPoint(trials, write, mode) for write, mode in trials.points(self.modes)]

    async def _run(self, executor: DurableWorkflowExecutor) -> object:
        for name, payloads in self.events.items():
            for number, payload in enumerate(payloads if isinstance(payloads, list) else [payloads]):
                await executor.signal(RUN_ID, name, payload, event_id=f"{name}-{number}", early=True)
        bound = self.workflow.bind(**copy.deepcopy(dict(self.inputs)))
        return (await executor.run(bound, run_id=RUN_ID)).output


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One durable write of a run, and what happens to its process there.

    Attributes:
        write: The write.
        mode: What happens: killed before it or after it, its reply lost, asked to stop there, or paused there
            until another process has taken the run over.
    """

    trials: Trials
    write: Write
    mode: Mode

    def __str__(self) -> str:
        return f"{self.write.number}-{self.write}-{self.mode.value}".replace(" ", "-")

    def survive(self) -> Any:
        """Runs the workflow in a process that meets this point, and lets another go on from there.

        Returns:
            The run's output, as the process was told that went to the end.

        Raises:
            AssertionError: A committed step ran again, a body ran more often than declared, an output was
                lost, or the run came to something else than without the crash.
        """
        life, broken = self.trials.lives(self.write.number, self.mode)
        assert not broken, "\n".join([f"{self}:", *broken])
        return life.value


def assert_resumable(
    workflow: Workflow[..., Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    events: Mapping[str, Any] | None = None,
    before_each: Callable[[], object] = lambda: None,
    after_each: Callable[[], object] = lambda: None,
) -> None:
    """Tries all crash points of a workflow in one test.

    Args:
        workflow: That is tried.
        inputs: By name.
        events: What it waits for: by name one payload, or a list of them.
        before_each: Called before each crash point: to reset what bodies act on.
        after_each: Called after each, to assert what holds of that.

    Raises:
        AssertionError: Something didn't hold; it names the crash points.
    """
    failed = []
    for point in Subject(workflow, inputs or {}, events or {}).points():
        before_each()
        try:
            point.survive()
            after_each()
        except AssertionError as error:
            failed.append(f"{point}: {error}")
    assert not failed, "\n".join([f"{len(failed)} crash points of {workflow.name}:", *failed])
