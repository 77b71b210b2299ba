"""The contract of a journal's listings, and of odd values in headers. Part of `JournalContract`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from durable_core.journal.base import RunFilter
from durable_core.records import FAILED, PENDING, TOMBSTONE, RunHeader
from durable_core.testing.journal_headers import LEFT
from durable_core.testing.samples import AT, RUN, driven, header, lease_of, owned, renewed

if TYPE_CHECKING:
    import asyncio

    from durable_core.journal.base import Journal

ODD_IDS = (
    "o'brien",
    'say "x"',
    "a%b",
    "a_b",
    "a\\b",
    "; DROP TABLE runs; --",
    "RUN",
    "run#1",
    "é😀",
    "a" * 128,
)
ODD_TEXTS = ('{"message":"\\ud800 \\u0000"}', "é😀", "'\"%_\\;--", " ", "", "x" * 10_000)


class ListingContract:
    """What every journal holds to when runs are listed, and whatever their ids and texts hold."""

    def test_runs_are_listed_newest_first_page_by_page(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """None twice, none left out, also where many were created in one millisecond; no tombstones."""
        made = [header(f"r{n:03}", created_at=f"2026-01-02T03:04:0{n % 3}.000Z") for n in range(57)]
        for one in made:
            runner.run(journal.create(one))
        runner.run(journal.create(header("pruned", status=TOMBSTONE)))
        listed: list[RunHeader] = []
        while page := runner.run(journal.runs(RunFilter(limit=10, before=_after(listed)))):
            assert len(page) <= 10
            listed += page
            assert len(listed) <= len(made)
        made.sort(key=lambda one: (one.created_at, one.run_id), reverse=True)
        assert listed == made

    def test_runs_are_found_by_status_workflow_and_prefix(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Each alone, and together; what stands for anything elsewhere is a plain character in a prefix."""
        for run_id, status, workflow in (
            ("a-1", PENDING, "w"),
            ("a-2", FAILED, "w"),
            ("a%3", FAILED, "v"),
            ("a_4", FAILED, "w"),
            ("A-5", FAILED, "w"),
        ):
            runner.run(journal.create(header(run_id, status=status, workflow=workflow)))

        def found(**wanted: Any) -> set[str]:
            return {one.run_id for one in runner.run(journal.runs(RunFilter(**wanted)))}

        assert found(status=FAILED) == {"a-2", "a%3", "a_4", "A-5"}
        assert found(workflow="v") == {"a%3"}
        assert found(prefix="a-") == {"a-1", "a-2"}
        assert found(prefix="a%") == {"a%3"}
        assert found(prefix="a_") == {"a_4"}
        assert found(prefix="a") == {"a-1", "a-2", "a%3", "a_4"}
        assert found(status=FAILED, workflow="w", prefix="a-") == {"a-2"}
        assert found(prefix="-") == set()
        assert found(limit=2) == {"a_4", "a-2"}

    def test_runs_are_found_by_when_they_were_created(self, runner: asyncio.Runner, journal: Journal) -> None:
        """From a time on, and up to another without it; also page by page."""
        for n in range(9):
            made = header(f"r{n}", created_at=f"2026-01-02T03:04:0{n}.000Z", workflow="vw"[n % 2])
            runner.run(journal.create(made))
        since, until = "2026-01-02T03:04:03.000Z", "2026-01-02T03:04:07.000Z"

        def found(**wanted: Any) -> list[str]:
            return [one.run_id for one in runner.run(journal.runs(RunFilter(**wanted)))]

        assert found(since=since) == ["r8", "r7", "r6", "r5", "r4", "r3"]
        assert found(until=until) == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
        assert found(since=since, until=until) == ["r6", "r5", "r4", "r3"]
        assert found(since=since, until=until, workflow="w") == ["r5", "r3"]
        assert found(since=until, until=since) == []
        after = ("2026-01-02T03:04:05.000Z", "r5")
        assert found(since=since, until=until, before=after) == ["r4", "r3"]
        assert found(since=since, before=("2026-01-02T03:04:09.000Z", "r"), limit=2) == ["r8", "r7"]

    def test_runs_are_found_by_a_text_that_they_have(self, runner: asyncio.Runner, journal: Journal) -> None:
        """In id, workflow, session, origin or error, in either case; nothing in it is a pattern.

        Of an error in what a listing tells of it: not in its traceback, nor in how it is stored.
        """
        error = json.dumps(
            {
                "type": "KeyError", "message": 'no "café" at 100% of C:\\tmp',
                "traceback": "june in line 7", "steps": ["bill#2"],
            }
        )  # fmt: skip
        for made in (
            header("june-1", status=FAILED, workflow="Month_End", error=error),
            header("JUNE-2", workflow="other", session_id="crew-7"),
            header("july", workflow="other", forked_from="May-4"),
        ):
            runner.run(journal.create(made))

        def found(text: str, **wanted: Any) -> set[str]:
            return {one.run_id for one in runner.run(journal.runs(RunFilter(text=text, **wanted)))}

        assert found("june") == found("JUNE") == found("une-") == {"june-1", "JUNE-2"}
        assert found("month_e") == found("keyerror") == found('"café" AT 100%') == {"june-1"}
        assert found("C:\\tmp") == {"june-1"}
        assert found("w-7") == {"JUNE-2"}
        assert found("may-4") == {"july"}
        assert found("j%y") == found("ju_e") == found("CAFÉ") == found("'") == set()
        assert found("ju", workflow="other") == {"JUNE-2", "july"}
        assert found("ju", workflow="other", limit=1) == {"july"}
        assert found("june", status=FAILED) == {"june-1"}
        assert found("ill#2") == {"june-1"}
        assert found("traceback") == found("message") == found("in line") == found("u00e9") == set()

    def test_runs_that_only_seem_to_have_a_text_fill_no_page(
        self, runner: asyncio.Runner, journal: Journal
    ) -> None:
        """Those behind them come in their place."""
        for n in range(9):
            error = json.dumps({"type": "E", "message": "found" if n % 4 == 0 else "", "traceback": "found"})
            runner.run(journal.create(header(f"r{n}", status=FAILED, error=error)))

        def found(**wanted: Any) -> list[str]:
            listed = runner.run(journal.runs(RunFilter(text="FOUND", **wanted)))
            return [one.run_id for one in listed]

        assert found(limit=2) == ["r8", "r4"]
        assert found(limit=2, before=(AT, "r4")) == ["r0"]
        assert found(limit=3) == found() == ["r8", "r4", "r0"]

    # ---- odd values ----

    @pytest.mark.parametrize("run_id", ODD_IDS)
    def test_any_run_id_is_a_plain_name(self, runner: asyncio.Runner, journal: Journal, run_id: str) -> None:
        """Quotes, wildcards and separators of the store mean nothing in it."""

        async def named() -> None:
            await journal.create(header("neighbour"))
            me = await driven(journal, run_id)
            assert (await renewed(journal, me)).ok
            assert [one.run_id for one in await journal.runs(RunFilter(prefix=run_id))] == [run_id]
            assert (await journal.leave(me, LEFT)).ok
            assert await journal.header("neighbour") == header("neighbour")

        runner.run(named())

    @pytest.mark.parametrize("text", ODD_TEXTS)
    def test_any_text_comes_back(self, runner: asyncio.Runner, journal: Journal, text: str) -> None:
        """Lone surrogates and NUL reach a journal as JSON escapes only."""
        made = owned(workflow=text or "w", error=text, session_id=text, owner_process=text, counts=text)
        runner.run(journal.create(made))
        end_ms = _lease_end(runner, journal)
        held = replace(made, lease_until_ms=end_ms, due_at_ms=end_ms)
        assert runner.run(journal.header(RUN)) == held
        reply = runner.run(journal.leave(lease_of(made), replace(LEFT, error=text, counts=text)))
        assert reply.row is not None
        assert (reply.row.error, reply.row.counts) == (text, text)


def _after(listed: list[RunHeader]) -> tuple[str, str] | None:
    return (listed[-1].created_at, listed[-1].run_id) if listed else None


def _lease_end(runner: asyncio.Runner, journal: Journal) -> int:
    now = runner.run(journal.header(RUN))
    assert now is not None
    return now.lease_until_ms
