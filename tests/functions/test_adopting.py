"""A handler that was there before: one line in it drives a run, and its trigger's retries go on with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durable_core import DeadlineReached, DurableWorkflowExecutor
from durable_core.aws.deadline import lambda_deadline
from tests.functions import jobs
from tests.lambda_place import Context, Deployment


def test_a_handler_stops_in_time_and_its_retries_go_on(deployment: Deployment) -> None:
    executor = DurableWorkflowExecutor()

    def handler(event: dict[str, Any], context: Any) -> int:
        until = lambda_deadline(context)
        run = executor.run_sync(jobs.many_slow, run_id=event["id"], deadline=until, count=5, seconds=0.3)
        return run.output

    tries = 0
    while True:  # as Lambda tries an asynchronous call again
        tries += 1
        try:
            answer = handler({"id": "adopted"}, Context(1200))
        except DeadlineReached:
            assert deployment.status("adopted") == "PENDING"
        else:
            break
    assert (answer, tries > 1) == (5, True)
    assert handler({"id": "adopted"}, Context(1200)) == 5  # delivered once more: the recorded result
    seen = deployment.inspect({"run_id": "adopted"}, Context())
    assert (seen["fence"], seen["crashes"], seen["counts"]) == (tries, 0, {"COMMITTED": 5})
    asyncio.run(executor.close())


@pytest.mark.parametrize("left_ms", [0, -10, 1])
def test_a_handler_that_has_no_time_begins_nothing(deployment: Deployment, left_ms: int) -> None:
    executor = DurableWorkflowExecutor()
    with pytest.raises(DeadlineReached):
        executor.run_sync(
            jobs.doubled, run_id=f"none-{left_ms}", deadline=lambda_deadline(Context(left_ms)), numbers=[1]
        )
    seen = deployment.inspect({"run_id": f"none-{left_ms}"}, Context())
    assert (seen["status"], seen["steps"]) == ("PENDING", [])
    asyncio.run(executor.close())


def test_an_executor_is_used_by_one_loop_after_the_other(deployment: Deployment) -> None:
    executor = DurableWorkflowExecutor()
    for n in range(5):
        run = asyncio.run(executor.run(jobs.doubled, run_id=f"loop-{n}", numbers=[n]))
        assert run.output == [2 * n]
    asyncio.run(executor.close())
