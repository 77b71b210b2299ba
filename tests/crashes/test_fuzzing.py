"""Whatever is handed to decoder, envelope, store URLs, event bodies or import, only errors of ours come out.

Neither a hang nor more memory than the cap allows: sizes that data claims are never believed.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from durable_core.codec import decode, encode
from durable_core.envelope import seal, unseal
from durable_core.errors import DurableError, NotSerializable
from durable_core.store_urls import parse_store_url
from durable_core.testing.crash_trials import in_memory
from durable_core.testing.fake_clock import FakeClock
from tests.waiting import full

EXAMPLES = 20_000 if full() else 200
CAP = 1_000_000
quick = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

_TAGS = ("$", "$$", "!", "t", "datetime", "decimal", "bytes", "tuple", "set", "dict", "enum", "model", "path")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(_TAGS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from([f"${tag}" for tag in _TAGS]), inner, max_size=4)
    ),
    max_leaves=12,
)


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Some bytes of it are others."""
    made = bytearray(data)
    for place, byte in changes:
        if made:
            made[place % len(made)] = byte
    return bytes(made)


CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6)


def only_ours(call: Callable[[], object]) -> None:
    with suppress(DurableError, NotSerializable):
        call()


@quick
@given(st.binary(max_size=300) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_the_decoder_raises_only_errors_of_ours(data: bytes) -> None:
    only_ours(lambda: decode(data))


@quick
@given(value=_JSON, changes=CHANGES, cut=st.integers(0, 400))
def test_damaged_values_raise_only_errors_of_ours(
    value: Any, changes: list[tuple[int, int]], cut: int
) -> None:
    data = damaged(encode(value), changes)
    only_ours(lambda: decode(data[: max(0, len(data) - cut % 7)]))


@quick
@given(
    raw=st.binary(max_size=6000),
    changes=CHANGES,
    codec=st.sampled_from(["json", "json+zstd", "json+gzip", "x"]),
)
def test_a_damaged_envelope_raises_only_errors_of_ours(
    raw: bytes, changes: list[tuple[int, int]], codec: str
) -> None:
    sealed = seal(raw, cap=CAP)
    data = damaged(sealed.data, changes)
    only_ours(lambda: unseal(codec, data, size=sealed.size, output_hash=sealed.output_hash, cap=CAP))


@pytest.mark.parametrize("codec", ["json+gzip", "json+zstd"])
@pytest.mark.parametrize("claimed", [10, CAP, 10**12, None])
def test_a_bomb_takes_no_more_memory_than_the_cap(codec: str, claimed: int | None) -> None:
    zeros = bytes(50 * CAP)
    bomb = gzip.compress(zeros) if codec == "json+gzip" else zstandard.ZstdCompressor().compress(zeros)
    del zeros
    tracemalloc.start()
    try:
        with pytest.raises(DurableError):
            unseal(codec, bomb, size=claimed, output_hash="0" * 64, cap=CAP)
        assert tracemalloc.get_traced_memory()[1] < 8 * CAP
    finally:
        tracemalloc.stop()


_SCHEMES = ("sqlite://", "sqlite:///", "postgresql://", "dynamodb://", "memory://", "")
_PARTS = st.lists(
    st.sampled_from(("a", "/", ":", "@", "?", "&", "=", "%", "%00", "..", "bucket", "region", "schema", " "))
    | st.text(max_size=5),
    max_size=8,
).map("".join)


@quick
@given(st.tuples(st.sampled_from(_SCHEMES), _PARTS).map("".join))
def test_store_urls_raise_only_errors_of_ours(url: str) -> None:
    only_ours(lambda: parse_store_url(url))


@step
async def small(number: int) -> int:
    return number + 1


@workflow
async def flow(ctx: Context, number: int) -> list[int]:
    return [await ctx.step(small, number), await ctx.wait_for_event("go", type=int)]


@pytest.fixture
async def bundle(tmp_path: Path) -> tuple[bytes, str | None]:
    """What a run is exported as, and its root hash."""
    clock = FakeClock()
    executor = DurableWorkflowExecutor(in_memory()(clock), clock=clock)
    await executor.start(flow, run_id="r1", number=1)
    await executor.signal("r1", "go", 5)
    await executor.run(flow, run_id="r1", number=1)
    await executor.export_run("r1", tmp_path / "r1.bundle")
    root = (await executor.verify("r1")).runs[0].root_hash
    return (tmp_path / "r1.bundle").read_bytes(), root


@settings(quick, max_examples=EXAMPLES // 4)
@given(changes=CHANGES.filter(bool), cut=st.integers(0, 3))
async def test_a_damaged_bundle_is_refused_whole_or_says_the_same(
    changes: list[tuple[int, int]], cut: int, bundle: tuple[bytes, str | None], tmp_path: Path
) -> None:
    whole, root = bundle
    data = damaged(whole, changes)
    data = data[: len(data) // cut] if cut else data
    (tmp_path / "damaged.bundle").write_bytes(data)
    clock = FakeClock()
    executor = DurableWorkflowExecutor(in_memory()(clock), clock=clock)
    try:
        taken = await executor.import_run(tmp_path / "damaged.bundle")
    except DurableError:
        assert await executor.list() == []
    else:  # what was damaged says nothing of the run, such as a date in the packing
        assert taken.root_hash == root
        assert (await executor.verify("r1")).runs[0].root_hash == root


@quick
@given(st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
async def test_an_event_that_does_not_fit_ends_in_an_error_of_ours(payload: bytes) -> None:
    """Any JSON may be sent; what the wait can't take fails the run, and nothing else."""
    clock = FakeClock()
    executor = DurableWorkflowExecutor(in_memory()(clock), clock=clock)
    try:
        value = json.loads(payload)
    except ValueError:
        value = payload
    await executor.start(flow, run_id="r1", number=1)
    with suppress(DurableError, NotSerializable):
        await executor.signal("r1", "go", value)
        assert isinstance((await executor.run(flow, run_id="r1", number=1)).output[1], int)
