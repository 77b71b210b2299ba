"""The contract of replaying: one scope, without the items of its maps. Part of `JournalContract`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import pytest

from durable_core.records import COMMITTED, FAILED, SKIPPED, STARTED, StepRecord
from durable_core.testing.samples import AT, MANY, RUN, attempt, committed, driven, gathered

if TYPE_CHECKING:
    from durable_core.journal.base import Journal, Lease

IN_IDS = "ABYZabyz0189._:@+=-/#![]"  # of what an id may have, the ends of each range and all the rest
SCOPES = (
    "", "a/", "a[0]/", "a[10]/", "a[k-0f]/", "a#2[0]/", "a[0]/m[1]/", "a[0]/m[1]/n[2]/", "b/", "b/c/",
    "b/a[0]/", "a[0]", "a", "a[", "nothing/",
)  # fmt: skip
ITEM = ("x", "x#2", "m", "m[0]/y", "m[1]", "m[1]/y", "m[1]/n", "m[1]/n[2]/z", "m#2[0]/y", "lane/x", "!join")
EVERY_COLUMN = StepRecord(
    RUN, "s", 7, COMMITTED, "3" * 64, "4" * 64, b"\x00\xff", "runs/run-1/a-b", "json+zstd", "2026-01-01", AT,
    "k" * 64, 3, 2, "a1", 1, "event", 2**40, '{"code":"E"}', '{"errors":1}', '[{"attempt":1}]',
)  # fmt: skip


class ReplayContract:
    """What every journal holds to when a drive reads what it has done.

    Attributes:
        many: How many records are more than a page of the store.
    """

    many: ClassVar[int] = MANY

    def test_what_replaying_an_output_takes_comes_with_a_committed_record(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Alone, without an attempt, or as the whole record."""

        async def replayed() -> None:
            me = await driven(journal)
            await journal.put(EVERY_COLUMN, None, me)
            (found,) = await gathered(journal.replay(RUN))
            assert _needed(found) == _needed(EVERY_COLUMN)
            assert found.attempt_id == "" or found == EVERY_COLUMN
            assert found.output_data is None or type(found.output_data) is bytes

        runner.run(replayed())

    @pytest.mark.parametrize("status", [STARTED, FAILED, SKIPPED])
    def test_a_record_that_is_not_committed_comes_whole(
        self, runner: asyncio.Runner, journal: Journal, status: str
    ) -> None:
        """What becomes of it is decided by all of its columns; among others, and in a scope of its own."""

        async def replayed() -> None:
            me = await driven(journal)
            made = [EVERY_COLUMN._replace(step_id=f"b/s#{n}", attempt_id=f"a{n}") for n in range(9)]
            made[4] = made[4]._replace(status=status)
            for one in made:
                await journal.put(one, None, me)
            for within in ("", "b/"):
                found = {one.step_id: one for one in await gathered(journal.replay(RUN, within))}
                assert found["b/s#4"] == made[4]
                assert {step_id: _needed(one) for step_id, one in found.items()} == {
                    one.step_id: _needed(one) for one in made
                }

        runner.run(replayed())

    def test_a_scope_is_replayed_without_the_items_of_its_maps(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Whatever sorts before, between and after them; branches belong to the scope that they are in."""
        ids = _ids()

        async def replayed() -> None:
            await _put_all(journal, await driven(journal), ids)
            other = await driven(journal, "run-10")
            for scope in SCOPES:
                await journal.begin(attempt(f"{scope}z", run_id="run-10"), None, other)
            for scope in SCOPES:
                found = [one.step_id for one in await gathered(journal.replay(RUN, scope))]
                within = (step_id for step_id in ids if step_id.startswith(scope))
                assert sorted(found) == sorted(
                    step_id for step_id in within if "[" not in step_id[len(scope) :]
                ), scope

        runner.run(replayed())

    def test_ids_that_no_scope_has_are_replayed_too(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Quotes, wildcards and what is beyond ASCII mean nothing in them."""

        async def replayed() -> None:
            ids = {"é😀", "a%b", "a_b", "a\\b", "o'brien", "\x7f", "~", "😀[0]/é", "😀", "é[0]", "%/x"}
            await _put_all(journal, await driven(journal), ids)
            assert {one.step_id for one in await gathered(journal.replay(RUN))} == ids - {"😀[0]/é", "é[0]"}
            assert {one.step_id for one in await gathered(journal.replay(RUN, "😀[0]/"))} == {"😀[0]/é"}
            assert {one.step_id for one in await gathered(journal.replay(RUN, "%/"))} == {"%/x"}
            assert {one.step_id for one in await gathered(journal.replay(RUN, "a_"))} == {"a_b"}

        runner.run(replayed())

    def test_thousands_of_steps_among_thousands_of_items_are_replayed(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Each step once, no item; and an item's own scope by itself."""

        async def replayed() -> None:
            some = self.many // 3
            steps = {f"s#{n}" for n in range(some)} | {f"lane/s#{n}" for n in range(some)}
            maps = {"m", "m#2", "lane/m", "t", "zz"}
            items = {
                f"{one}[{n}]/{step_id}"
                for one in maps
                for n in range(15 + self.many // 20)
                for step_id in ("x", "y")
            }
            ids = steps | maps | items
            await _put_all(journal, await driven(journal), ids)
            found = [one.step_id for one in await gathered(journal.replay(RUN))]
            assert sorted(found) == sorted(steps | maps)
            found = [one.step_id for one in await gathered(journal.replay(RUN, "lane/"))]
            assert sorted(found) == sorted(one for one in steps | maps if one.startswith("lane/"))
            found = [one.step_id for one in await gathered(journal.replay(RUN, "m#2[14]/"))]
            assert sorted(found) == ["m#2[14]/x", "m#2[14]/y"]

        runner.run(replayed())

    def test_a_run_without_records_replays_nothing(self, runner: asyncio.Runner, journal: Journal) -> None:
        """Whether it is there or not."""

        async def replayed() -> None:
            assert await gathered(journal.replay(RUN)) == []
            await driven(journal)
            assert await gathered(journal.replay(RUN)) == []
            assert await gathered(journal.replay(RUN, "a[0]/")) == []

        runner.run(replayed())


def _ids() -> set[str]:
    """Around two maps and their items every character that an id may have, in a row and before a name."""
    edges = {f"{name}{mark}{rest}" for name in ("a", "b/a") for mark in IN_IDS for rest in ("", "x", "]/x")}
    items = {
        f"{of}[{item}]/{step_id}"
        for of in ("a", "a#2", "b/a", "b/c/a", "Z")
        for item in ("0", "1", "10", "k-0f", "k-00")
        for step_id in ITEM
    }
    whole = {"a", "a[0]", "a[10]", "a#2", "a#2[k-0f]", "b", "b/c/s", "b/!join", "!join", "Z", "[", "]"}
    return edges | items | whole


def _needed(record: StepRecord) -> tuple[object, ...]:
    """What a drive reads of a COMMITTED record."""
    return (
        record.run_id, record.step_id, record.status, record.input_hash, record.output_hash,
        record.output_data, record.output_ref, record.codec, record.committed_at, record.fence, record.kind,
        record.output_size,
    )  # fmt: skip


async def _put_all(journal: Journal, me: Lease, ids: set[str]) -> None:
    journal.live = 2
    made = [committed(attempt(step_id, f"a{n}")) for n, step_id in enumerate(sorted(ids))]
    for start in range(0, len(made), 300):
        replies = await asyncio.gather(*(journal.put(one, None, me) for one in made[start : start + 300]))
        assert all(reply.ok for reply in replies)
    journal.live = 0
