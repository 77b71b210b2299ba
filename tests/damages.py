"""A seeded set of damages that a journal can have, each with what verifying it is to find."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any, Final

from durable_core import Context, Retry, current_step, step, workflow
from durable_core.blobs.base import blob_ref
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.records import COMPLETED, RUNNING, Chunk
from durable_core.testing.samples import AT
from tests.raw_store import RawStore, Row

RUN: Final = "r1"
OTHER_HASH: Final = "0" * 64


# ---- A run with a record of everything ----


@step
async def give(size: int) -> str:
    return "x" * size


@step
async def scramble(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@step(pure=True)
async def reckon(n: int) -> int:
    return n * n


@step(retry=Retry(max_attempts=3, initial_delay_s=0))
async def stumble() -> int:
    if current_step().attempt < 3:
        raise ValueError("not yet")
    return 3


@step
async def fail() -> None:
    raise ValueError("for good")


@step
async def item(n: int) -> bytes:
    await asyncio.sleep(0.001)  # so that they don't all come into one segment
    if n == 7:
        raise ValueError("a bad item")
    return random.Random(n).randbytes(20_000 if n % 5 == 0 else 10)


@step
async def part(n: int) -> int:
    return n + 1


async def nested(ctx: Context, n: int) -> int:
    return int(await ctx.step(part, n)) + int(await ctx.step(part, n + 1))


async def branch(ctx: Context, n: int) -> int:
    return int(await ctx.step(part, n))


@workflow(name="everything")
async def everything(ctx: Context, size: int) -> bytes:
    """Steps of every status and kind, maps of every form, events taken and not, values inside and outside."""
    await ctx.step(give, 5)
    await ctx.step(scramble, size)
    await ctx.step(reckon, 4)
    await ctx.step_if(False, give, 6)
    await ctx.step(stumble)
    with contextlib.suppress(Exception):
        await ctx.step(fail)
    await ctx.map(item, range(12), max_concurrency=2, tolerate_failures=1)
    await ctx.map(nested, [3, 1, 2], key=str)
    await ctx.parallel(ctx.branch(branch, 1), ctx.branch(branch, 2))
    await ctx.sleep(0)
    await ctx.wait_for_event("go", type=bytes)
    await ctx.wait_for_event("go", type=bytes)
    return random.Random(1).randbytes(size)


async def run_everything(executor: DurableWorkflowExecutor, run_id: str = RUN) -> None:
    """A healthy run of it. One event is left that nobody takes."""
    for number, size in enumerate((10, 20_000, 30)):
        payload = random.Random(size).randbytes(size)
        await executor.signal(run_id, "go", payload, event_id=f"go-{number}", early=True)
    await executor.run(everything, run_id=run_id, size=20_000)


# ---- Damages ----


Doing = Callable[[RawStore, random.Random], str | None]
DAMAGES: Final[dict[str, tuple[frozenset[str], Doing]]] = {}
"""By name: the kinds of findings of which one tells of it, and what does it; that gives what is named."""


def _damage(*kinds: str) -> Callable[[Doing], Doing]:
    def known(doing: Doing) -> Doing:
        DAMAGES[doing.__name__.strip("_").replace("_", " ")] = frozenset(kinds), doing
        return doing

    return known


def _set(kind: str, row: Row, raw: RawStore, /, **columns: Any) -> str | None:
    raw.put(kind, row | columns)
    return row.get("step_id") or row.get("name")


def _steps(raw: RawStore, **columns: object) -> list[Row]:
    return [row for row in raw.rows("step") if all(row[name] == columns[name] for name in columns)]


def _inline(raw: RawStore) -> list[Row]:
    return [row for row in _steps(raw, status="COMMITTED", kind="step") if row["output_data"] is not None]


def _segments(raw: RawStore) -> list[Row]:
    return [row for row in raw.rows("segment") if row["items"]]


@_damage("header-unreadable")
def _the_status_of_the_header_is_none(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, status="BROKEN")


@_damage("value-damaged", "blob-damaged")
def _the_hash_of_the_inputs_is_another(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, input_data_hash=OTHER_HASH)


@_damage("value-damaged")
def _the_inputs_are_others(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, input_data=b'{"size":20001}')


@_damage("blob-missing")
def _the_output_of_the_run_is_gone(raw: RawStore, _: random.Random) -> str | None:
    raw.put_blob(raw.row("header")["output_ref"], None)
    return None


@_damage("header-contradicts")
def _the_run_has_completed_and_not_ended(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, ended_at=None)


@_damage("header-contradicts")
def _the_run_is_completed_and_driven(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, owner="somebody")


@_damage("header-contradicts")
def _the_fence_is_below_its_base(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, base_fence=9)


@_damage("header-json")
def _the_counts_of_the_header_are_no_json(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, counts="{")


@_damage("header-time")
def _the_creation_is_no_time(raw: RawStore, _: random.Random) -> str | None:
    return _set("header", raw.row("header"), raw, created_at="yesterday")


@_damage("header-missing")
def _the_header_is_gone(raw: RawStore, _: random.Random) -> str | None:
    raw.delete("header", raw.row("header"))
    return None


@_damage("steps-missing")
def _a_committed_step_is_gone(raw: RawStore, drawn: random.Random) -> str | None:
    rows = [row for row in _inline(raw) if "[" not in row["step_id"]]
    raw.delete("step", drawn.choice(rows))
    return None


@_damage("steps-missing")
def _a_failed_step_is_gone(raw: RawStore, _: random.Random) -> str | None:
    raw.delete("step", raw.row("step", step_id="fail"))
    return None


@_damage("step-unknown", "step-unreadable")
def _the_status_of_a_step_is_none(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, status="DONE")


@_damage("step-unknown")
def _the_kind_of_a_step_is_none(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, kind="leap")


@_damage("value-damaged")
def _an_output_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice(_inline(raw))
    return _set("step", row, raw, output_data=bytes(len(row["output_data"])))


@_damage("value-damaged", "blob-damaged")
def _the_hash_of_an_output_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    return _set(
        "step", drawn.choice(_steps(raw, status="COMMITTED", kind="step")), raw, output_hash=OTHER_HASH
    )


@_damage("value-damaged", "blob-damaged")
def _the_size_of_an_output_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice(_steps(raw, status="COMMITTED", kind="step"))
    return _set("step", row, raw, output_size=row["output_size"] + 1)


@_damage("value-damaged", "blob-damaged")
def _the_codec_of_an_output_is_unknown(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(_steps(raw, status="COMMITTED", kind="step")), raw, codec="pickle")


@_damage("step-contradicts")
def _a_committed_step_has_no_output(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(_inline(raw)), raw, output_data=None)


@_damage("step-contradicts")
def _a_failed_step_has_no_error(raw: RawStore, _: random.Random) -> str | None:
    return _set("step", raw.row("step", step_id="fail"), raw, error=None)


@_damage("step-contradicts")
def _a_committed_step_has_an_error(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(_inline(raw)), raw, error='{"code":"ERROR"}')


@_damage("step-identity")
def _the_key_of_a_step_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, idempotency_key=OTHER_HASH)


@_damage("step-identity")
def _the_index_of_a_step_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice(raw.rows("step"))
    return _set("step", row, raw, step_index=row["step_index"] + 1)


@_damage("step-identity")
def _the_input_hash_of_a_step_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, input_hash=OTHER_HASH)


@_damage("history")
def _the_history_of_attempts_is_gone(raw: RawStore, _: random.Random) -> str | None:
    return _set("step", raw.row("step", step_id="stumble"), raw, attempts=None)


@_damage("history")
def _the_number_of_attempts_is_another(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(_inline(raw)), raw, attempt=2**31)


@_damage("step-json")
def _the_history_of_attempts_is_no_json(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, attempts="[{]")


@_damage("step-json")
def _the_detail_of_a_step_is_no_object(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, detail="[1]")


@_damage("step-time")
def _the_start_of_a_step_is_no_time(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, started_at="noon")


@_damage("step-time")
def _a_step_ended_before_it_started(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(_inline(raw)), raw, started_at="2999-01-01T00:00:00.000Z")


@_damage("future-fence")
def _a_step_has_a_fence_that_nobody_had(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(raw.rows("step")), raw, fence=99)


@_damage("blob-missing")
def _a_blob_is_gone(raw: RawStore, _: random.Random) -> str | None:
    row = raw.row("step", step_id="scramble")
    raw.put_blob(row["output_ref"], None)
    return "scramble"


@_damage("blob-damaged")
def _the_bytes_of_a_blob_are_others(raw: RawStore, _: random.Random) -> str | None:
    raw.put_blob(raw.row("step", step_id="scramble")["output_ref"], b"others")
    return "scramble"


@_damage("pointer-damaged")
def _a_pointer_leads_to_another_run(raw: RawStore, _: random.Random) -> str | None:
    row = raw.row("step", step_id="scramble")
    return _set("step", row, raw, output_ref=row["output_ref"].replace(f"runs/{RUN}/", "runs/r2/"))


@_damage("pointer-damaged")
def _a_pointer_leads_out_of_the_store(raw: RawStore, _: random.Random) -> str | None:
    return _set("step", raw.row("step", step_id="scramble"), raw, output_ref="../../etc/passwd")


@_damage("orphan-blob")
def _a_blob_has_no_pointer(raw: RawStore, _: random.Random) -> str | None:
    data = b"left behind"
    ref = blob_ref(RUN, "0" * 20, data)
    raw.put_blob(ref, data)
    return ref


@_damage("segment-missing")
def _a_segment_is_gone(raw: RawStore, drawn: random.Random) -> str | None:
    rows = [row for row in _segments(raw) if row["step_id"] == "item"]
    row = drawn.choice(rows[:-1])
    raw.delete("segment", row)
    return "item"


@_damage("map-contradicts", "segment-missing")
def _the_last_segments_of_a_map_are_gone(raw: RawStore, drawn: random.Random) -> str | None:
    step_id = drawn.choice(["item", "nested"])
    raw.delete("segment", [row for row in _segments(raw) if row["step_id"] == step_id][-1])
    return step_id


@_damage("segment-damaged")
def _a_segment_holds_something_else(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice(_segments(raw))
    return _set("segment", row, raw, data=row["data"][:-1] + b"?")


@_damage("segment-damaged")
def _a_segment_counts_another_number_of_items(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice(_segments(raw))
    return _set("segment", row, raw, items=row["items"] + 1)


@_damage("segment-damaged")
def _a_segment_names_other_blobs(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice([row for row in _segments(raw) if row["refs"] is not None])
    return _set("segment", row, raw, refs="[]")


@_damage("segment-out-of-order")
def _segments_are_out_of_order(raw: RawStore, _: random.Random) -> str | None:
    raw.put("header", raw.row("header") | {"fence": 3})
    first = next(row for row in _segments(raw) if row["step_id"] == "item")
    return _set("segment", first, raw, fence=2)


@_damage("segment-without-map")
def _the_record_of_a_map_is_gone(raw: RawStore, _: random.Random) -> str | None:
    raw.delete("step", raw.row("step", step_id="item"))
    return "item"


@_damage("map-missing")
def _steps_lie_in_items_of_no_map(raw: RawStore, _: random.Random) -> str | None:
    raw.delete("step", raw.row("step", step_id="nested"))
    return None


@_damage("map-damaged")
def _a_map_does_not_say_where_its_outcomes_are(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("step", drawn.choice(_steps(raw, kind="map")), raw, detail="{}")


@_damage("map-contradicts")
def _a_segment_of_a_map_is_there_in_the_place_of_another(raw: RawStore, _: random.Random) -> str | None:
    """It is sound by itself."""
    first, second, *_ = [row for row in _segments(raw) if row["step_id"] == "item"]
    content = ("items", "succeeded", "failed", "data", "codec", "size", "output_hash", "refs")
    return _set("segment", first, raw, **{name: second[name] for name in content})


@_damage("blob-missing")
def _the_large_output_of_an_item_is_gone(raw: RawStore, drawn: random.Random) -> str | None:
    row = drawn.choice([row for row in _segments(raw) if row["refs"] is not None])
    raw.put_blob(drawn.choice(json.loads(row["refs"])), None)
    return None


SOUND_CHUNK: Final = Chunk(RUN, "item", 0, 1, 1, COMPLETED, succeeded=11, failed=1, updated_at=AT)
"""Of a map that workers shared; nothing is wrong with it."""


def _chunk(raw: RawStore, **columns: Any) -> str | None:
    row = raw.new_chunk(SOUND_CHUNK._replace(**columns))
    return _set("chunk", row, raw)


@_damage("chunk-contradicts")
def _the_status_of_a_chunk_is_none(raw: RawStore, _: random.Random) -> str | None:
    return _chunk(raw, status="DONE")


@_damage("chunk-contradicts")
def _a_chunk_is_worked_on_by_nobody(raw: RawStore, _: random.Random) -> str | None:
    return _chunk(raw, status=RUNNING)


@_damage("chunk-contradicts")
def _a_chunk_has_failed_fewer_than_none(raw: RawStore, _: random.Random) -> str | None:
    return _chunk(raw, failed=-1)


@_damage("chunk-without-map")
def _a_chunk_is_of_no_map(raw: RawStore, _: random.Random) -> str | None:
    return _chunk(raw, step_id="item#9")


@_damage("chunk-json")
def _what_a_chunk_knows_of_its_owners_is_no_json(raw: RawStore, drawn: random.Random) -> str | None:
    return _chunk(raw, **{drawn.choice(["gone", "error"]): "{"})


@_damage("future-fence")
def _the_fence_of_a_chunk_is_one_that_the_run_never_had(raw: RawStore, _: random.Random) -> str | None:
    return _chunk(raw, fence=9)


@_damage("value-damaged")
def _an_event_says_something_else(raw: RawStore, _: random.Random) -> str | None:
    return _set("event", raw.row("event", seq=0), raw, data=b'"no"')


@_damage("event-missing")
def _an_event_that_was_taken_is_gone(raw: RawStore, drawn: random.Random) -> str | None:
    raw.delete("event", raw.row("event", seq=drawn.choice([0, 1])))
    return None


@_damage("event-taken")
def _an_event_was_taken_by_nobody(raw: RawStore, _: random.Random) -> str | None:
    return _set("event", raw.row("event", seq=2), raw, taken_by="f" * 20)


@_damage("event-twice")
def _an_event_is_there_twice(raw: RawStore, _: random.Random) -> str | None:
    return _set("event", raw.row("event", seq=2), raw, event_id="go-0")


@_damage("future-fence")
def _an_event_was_sent_to_a_life_to_come(raw: RawStore, drawn: random.Random) -> str | None:
    return _set("event", raw.row("event", seq=drawn.randrange(3)), raw, fence=8)


@_damage("in-doubt", "left-started")
def _a_step_is_left_started_under_a_fence_that_is_over(raw: RawStore, _: random.Random) -> str | None:
    raw.put("header", raw.row("header") | {"fence": 2})
    row = raw.row("step", step_id="give")
    nothing = dict.fromkeys(("output_data", "output_hash", "output_size", "codec", "committed_at"))
    return _set("step", row, raw, status="STARTED", **nothing)
