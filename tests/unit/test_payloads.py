"""That no test logs what it has stored is seen in every test; here, that it would be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.log import get_logger
from tests.payloads import SECRETS, Listener

GIVEN = "confided by the customer"
SENT = "sent by the lawyer on Monday"
MADE = ["made by the step", "for the third time"]


@step
async def confide(text: str) -> list[str]:
    return MADE


@workflow(name="confiding")
async def confiding(ctx: Context, text: str) -> list[str]:
    await ctx.step(confide, text)
    answer = await ctx.wait_for_event("word", type=str, timeout=timedelta(seconds=60))
    batch = await ctx.map(confide, [answer])
    return list(batch.outputs[0])


@pytest.fixture
def heard(_no_payload_is_logged: None) -> Iterator[Listener]:
    """What is heard inside: the lines of these tests don't come to the listener of all tests."""
    found = Listener()
    with pytest.MonkeyPatch.context() as patched:
        found.listen(patched)
        yield found


async def test_whatever_is_stored_would_be_missed_in_no_line(heard: Listener) -> None:
    executor = DurableWorkflowExecutor("memory://")
    await executor.signal("r-confided", "word", SENT, early=True)
    assert (await executor.run(confiding, run_id="r-confided", text=GIVEN)).output == MADE
    await executor.close()
    assert heard.lines
    assert heard.leaks() == []
    log = get_logger("durable_core")
    for leaked in (GIVEN, SENT, *MADE):
        log.info("step_committed", of=f"the value {leaked!r} of a step")
    assert heard.leaks() == sorted([GIVEN, SENT, *MADE])


async def test_credentials_would_be_missed_in_no_line(heard: Listener) -> None:
    get_logger("durable_core").error("store_unreachable", reason=f"key {SECRETS[0]} is refused")
    assert heard.leaks() == [SECRETS[0]]
