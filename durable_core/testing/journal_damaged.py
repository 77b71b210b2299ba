"""The contract of headers that can't be read: what is told of them, what takes their place. Part of
`JournalContract`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from durable_core.records import PRUNING, RunHeader
from durable_core.testing.samples import AT, LEASE_MS, RUN, claim, header, owned, seen_now

if TYPE_CHECKING:
    import asyncio

    from durable_core.journal.base import Journal
    from durable_core.journal.damaged import DamagedHeader

STAND_IN: Final = RunHeader(
    RUN, "report", status=PRUNING, created_by="pruner", fence=2, created_at=AT, updated_at=AT
)


class DamageContract:
    """What every journal holds to when a header can't be read: one whose status is none, as it is stored."""

    def test_what_can_be_read_of_a_damaged_header_is_told(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """All but its status; a header that can be read is none of those, nor is one that isn't there."""

        async def told() -> None:
            assert await journal.damaged_header(RUN) is None
            assert (await journal.create(header("run-2"))).ok
            assert await journal.damaged_header("run-2") is None
            seen = await broken(journal)
            assert (seen.run_id, "BROKEN" in seen.why) == (RUN, True)
            known = dict(seen.known)
            assert known.pop("lease_until_ms") > 0
            assert {name: known[name] for name in ("owner", "fence", "workflow")} == {
                "owner": "me", "fence": 1, "workflow": "report",
            }  # fmt: skip
            assert "status" not in known

        runner.run(told())

    def test_a_damaged_header_gives_way_once(
        self, runner: asyncio.Runner, journal: Journal, rival: Journal
    ) -> None:
        """To one of two; the same write made again knows itself, and the run can be acquired from then on."""

        async def replaced() -> None:
            seen = await broken(journal)
            reply = await journal.replace_damaged(seen, STAND_IN)
            assert (reply.ok, reply.row) == (True, STAND_IN)
            assert await rival.header(RUN) == STAND_IN
            again = await journal.replace_damaged(seen, STAND_IN)
            assert (again.ok, again.row) == (False, STAND_IN)
            other = await rival.replace_damaged(seen, replace(STAND_IN, created_by="another"))
            assert (other.ok, other.row) == (False, STAND_IN)
            pruner = claim("p", LEASE_MS, status=PRUNING)
            taken = await journal.acquire(await seen_now(journal), pruner, statuses=(PRUNING,))
            assert taken.ok
            assert (await seen_now(journal)).fence == 3

        runner.run(replaced())

    @pytest.mark.parametrize("column", ["fence", "wake_count", "error", "input_data", "status"])
    def test_a_header_that_was_written_to_since_stays(
        self, runner: asyncio.Runner, journal: Journal, column: str
    ) -> None:
        """Whatever it was: its owner may be alive, or somebody mends it."""

        async def kept() -> None:
            seen = await broken(journal)
            changed: dict[str, Any] = {
                "fence": 2, "wake_count": 1, "error": "{}", "input_data": b"other", "status": "WRECKED",
            }  # fmt: skip
            written = replace(BROKEN, **{column: changed[column]})
            assert (await journal.replace_damaged(seen, written)).ok  # as somebody else
            now = await journal.damaged_header(RUN)
            assert now is not None
            reply = await journal.replace_damaged(seen, STAND_IN)
            assert (reply.ok, reply.row) == (False, None)
            assert await journal.damaged_header(RUN) == now
            assert (await journal.replace_damaged(now, STAND_IN)).ok

        runner.run(kept())


BROKEN: Final = owned(status="BROKEN")


async def broken(journal: Journal) -> DamagedHeader:
    """A header of a status that is none."""
    assert (await journal.create(BROKEN, LEASE_MS)).ok
    seen = await journal.damaged_header(RUN)
    assert seen is not None
    return seen
