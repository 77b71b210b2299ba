"""What the page of a run is made from: rows of a tree, marks, times; whatever the records hold."""

from __future__ import annotations

from typing import Any

import pytest

from durable_core.report import timeline as module
from durable_core.report.page import page
from durable_core.report.timeline import largest, marks, slowest, timeline

RUN: dict[str, Any] = {
    "created_at": "2026-01-02T03:04:05.000Z",
    "ended_at": "2026-01-02T03:04:15.000Z",
    "status": "COMPLETED",
}
START_MS = 1_767_323_045_000


def step(step_id: str, began_s: float | None = 0, took_s: float | None = 1, **other: Any) -> dict[str, Any]:
    def at(seconds: float | None) -> str | None:
        return None if seconds is None else f"2026-01-02T03:04:{5 + seconds:06.3f}Z"

    end = None if began_s is None or took_s is None else began_s + took_s
    made = {
        "step_id": step_id, "kind": "step", "status": "COMMITTED", "state": None, "attempt": 1, "crashes": 0,
        "started_at": at(began_s), "committed_at": at(end), "took_ms": None if end is None else took_s,
        "output_size_bytes": 3, "output_hash": "a", "codec": "json", "stored_in": "record", "input_hash": "b",
        "idempotency_key": "c", "fence": 1, "error": None, "attempts": [], "items": None, "corrupt": None,
    }  # fmt: skip
    return made | other


def shape(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(row["id"], row["depth"], row["parent"]) for row in found["rows"]]


def test_steps_stand_in_their_scopes_each_where_it_was_first_begun() -> None:
    steps = [step("a"), step("r/x"), step("b"), step("r/s/y"), step("r/z"), step("q/s/y")]
    assert shape(timeline(RUN, steps, 0)) == [
        ("a", 0, -1), ("r", 0, -1), ("r/x", 1, 1), ("r/s", 1, 1), ("r/s/y", 2, 3), ("r/z", 1, 1),
        ("b", 0, -1), ("q", 0, -1), ("q/s", 1, 7), ("q/s/y", 2, 8),
    ]  # fmt: skip


def test_a_scope_spans_its_steps_and_is_open_while_one_of_them_is() -> None:
    steps = [step("r/x", 1, 2), step("r/s/y", 4, 3), step("q/z", 5, None, status="STARTED")]
    found = {row["id"]: row for row in timeline(RUN, steps, 0)["rows"]}
    assert (found["r"]["start"], found["r"]["end"], found["r"]["count"]) == (1000, 7000, 2)
    assert (found["r"]["open"], found["q"]["open"]) == (False, True)


def test_times_are_from_the_start_of_the_run_to_its_end() -> None:
    found = timeline(RUN, [step("a", 1, 2)], 0)
    assert (found["start_ms"], found["length_ms"]) == (START_MS, 10_000)
    running = {**RUN, "ended_at": None, "status": "RUNNING"}
    assert timeline(running, [step("a", 1, 2)], START_MS + 60_000)["length_ms"] == 60_000
    failed_early = {**RUN, "ended_at": None, "status": "CORRUPT"}
    assert timeline(failed_early, [step("a", 1, 2)], START_MS + 60_000)["length_ms"] == 3_000
    assert timeline(RUN, [], 0)["rows"] == []


@pytest.mark.parametrize("damaged", ["yesterday", 7, None, ""])
def test_a_time_that_cannot_be_read_is_none(damaged: Any) -> None:
    found = timeline({**RUN, "created_at": damaged}, [step("a", 1, 2), step("b", started_at=damaged)], 99)
    assert found["start_ms"] == START_MS + 1_000  # of the first step that has one
    assert [row["start"] for row in found["rows"]] == [0, None]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, ["committed"]),
        ({"status": "FAILED"}, ["failed"]),
        ({"status": "STARTED", "state": "in doubt"}, ["in doubt"]),
        ({"status": "STARTED", "state": None}, ["started"]),
        ({"attempt": 3}, ["committed", "re-run"]),
        ({"attempt": 3, "crashes": 2, "status": "FAILED"}, ["failed", "re-run", "crashed"]),
        ({"attempt": "x", "crashes": None}, ["committed"]),
        ({"corrupt": "status is odd", "status": "BLUE"}, ["corrupt"]),
    ],
)
def test_a_step_is_marked_by_how_it_stands_and_by_what_happened_to_it(other: Any, told: list[str]) -> None:
    assert marks(step("a", **other)) == told
    assert timeline(RUN, [step("a", **other)], 0)["counts"] == dict.fromkeys(told, 1)


def test_earlier_attempts_keep_their_times() -> None:
    earlier = {
        "attempt": 1,
        "fence": 1,
        "started_at": "2026-01-02T03:04:06.500Z",
        "ended_at": None,
        "error": "ERROR",
    }
    (row,) = timeline(RUN, [step("a", 3, 1, attempt=2, attempts=[earlier])], 0)["rows"]
    assert row["attempts"] == [{"attempt": 1, "fence": 1, "start": 1500, "end": None, "error": "ERROR"}]


def test_of_too_many_steps_those_that_say_something_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 5)
    steps = [step(f"s{n}", status="FAILED" if n in (7, 9) else "COMMITTED") for n in range(10)]
    found = timeline(RUN, steps, 0)
    assert [row["id"] for row in found["rows"]] == ["s0", "s1", "s2", "s7", "s9"]
    assert found["left_out"] == 5


def test_rankings_name_what_is_worth_naming() -> None:
    steps = [step(f"s{n}", took_ms=n, output_size_bytes=10 * n) for n in (1, 500, 3, 200, 0)]
    assert [one["step_id"] for one in slowest([*steps, step("odd", took_ms="x")])] == ["s500", "s200"]
    assert [one["value"] for one in largest(steps, most=1)] == [5_000]


def test_text_from_data_is_escaped_in_markup_and_in_data() -> None:
    owned = "</script><script>alert(1)</script>"
    shown: dict[str, Any] = {
        "run_id": owned, "workflow": owned, "forked_from": owned, "label": owned, "tone": "bad",
        "facts": [{"name": owned, "value": owned, "note": owned}],
        "notices": [
            {
                "tone": "bad", "title": owned, "text": owned, "steps": [f'"{owned}'], "more": 1,
                "commands": [owned], "traceback": owned,
            },
        ],
        "in_out": [{"name": owned, "note": owned, "text": owned}],
    }  # fmt: skip
    html = page({
        "run": shown, "timeline": timeline(RUN, [step(owned, output=owned)], 0), "maps": [], "rankings": [],
        "cost": {"told": owned, "lines": [], "note": owned}, "made": owned,
    })  # fmt: skip
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    assert "alert(1)" in html
