"""The mark for tests that are run at each crash point of a workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

    from durable_core.testing.simulated_process import Mode
    from durable_core.workflow import Workflow


def crash_points(
    workflow: Workflow[..., Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    events: Mapping[str, Any] | None = None,
    modes: Sequence[Mode] | None = None,
) -> pytest.MarkDecorator:
    """Runs a test for each durable write of a workflow and each thing that can happen to a process there.

    The test takes the fixture `crash_point`, and calls `crash_point.survive()`: that runs the workflow in a
    simulated process that meets its fate at this write, and goes on in another. It raises if the run didn't
    come to the same, or a committed step ran again. What bodies did to the world is for the test to assert.

    The workflow is run once while tests are collected, to see which writes there are.

    Args:
        workflow: That is tried.
        inputs: By name.
        events: What it waits for: by name one payload, or a list of them.
        modes: What happens to a process; everything if not given.

    Example:
        @crash_points(month_end, {"customers": ["ann", "bob"]})
        def test_nobody_is_charged_twice(crash_point: CrashPoint) -> None:
            bank.clear()
            assert len(crash_point.survive()) == 2
            assert len(bank.payments) == 2
    """
    import pytest

    from durable_core.testing.crash_points import Subject
    from durable_core.testing.crash_trials import SIMULATED_MODES

    return pytest.mark.crash_points(Subject(workflow, inputs or {}, events or {}, modes or SIMULATED_MODES))
