"""Sealed bytes come back exactly, or damage is told; a small input never grows past its cap."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Literal

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.envelope import DEFAULT_CAP, PLAIN_BELOW, Sealed, seal, unseal
from durable_core.errors import CorruptRecord, OutputTooLarge

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
TEXT = b'{"title":"a report","body":"' + b"lorem ipsum " * 2000 + b'"}'
NOISE = random.Random(1).randbytes(50_000)
Codec = Literal["zstd", "gzip"]
CODECS: tuple[Codec, ...] = ("zstd", "gzip")


def opened(sealed: Sealed, **changed: object) -> bytes:
    given = {**sealed._asdict(), **changed}
    return unseal(
        given["codec"],
        given["data"],
        size=given["size"],
        output_hash=given["output_hash"],
        cap=given.get("cap", DEFAULT_CAP),
    )


def peak_of(work: object) -> int:
    tracemalloc.start()
    try:
        work()  # type: ignore[operator]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "raw", [b"", b"1", b"a" * (PLAIN_BELOW - 1), b"a" * PLAIN_BELOW, TEXT, NOISE, NOISE + TEXT]
)
def test_sealed_bytes_come_back_exactly(raw: bytes, codec: Codec) -> None:
    sealed = seal(raw, codec=codec)
    assert opened(sealed) == raw
    assert (sealed.size, sealed.output_hash) == (len(raw), sha256(raw).hexdigest())
    assert unseal(sealed.codec, sealed.data, size=None, output_hash=None) == raw


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 200), st.sampled_from(CODECS))
def test_any_bytes_come_back_exactly(unit: bytes, times: int, codec: Codec) -> None:
    assert opened(seal(unit * times, codec=codec)) == unit * times


@pytest.mark.parametrize("codec", CODECS)
def test_only_what_is_long_and_gets_smaller_is_compressed(codec: Codec) -> None:
    assert seal(b"a" * (PLAIN_BELOW - 1), codec=codec).codec == "json"
    assert seal(b"a" * PLAIN_BELOW, codec=codec).codec == f"json+{codec}"
    assert seal(NOISE, codec=codec) == Sealed("json", NOISE, len(NOISE), sha256(NOISE).hexdigest())
    assert len(seal(TEXT, codec=codec).data) < len(TEXT) // 10


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_bytes_are_sealed_the_same_each_time_and_in_every_thread(codec: Codec) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: seal(TEXT, codec=codec), range(40)))) == 1


def test_gzip_carries_no_time_and_others_read_it() -> None:
    data = seal(TEXT, codec="gzip").data
    assert data[4:8] == bytes(4)
    assert gzip.decompress(data) == TEXT
    assert (
        unseal("json+gzip", gzip.compress(TEXT), size=len(TEXT), output_hash=sha256(TEXT).hexdigest()) == TEXT
    )


@pytest.mark.parametrize("size", [100, PLAIN_BELOW, 5000])
@pytest.mark.parametrize("codec", CODECS)
def test_more_than_the_cap_is_refused_with_both_numbers(codec: Codec, size: int) -> None:
    assert seal(b"a" * size, cap=size, codec=codec).size == size
    with pytest.raises(OutputTooLarge, match=rf"{size} bytes.*{size - 1}") as caught:
        seal(b"a" * size, cap=size - 1, codec=codec)
    assert caught.value.remedy


def test_the_cap_is_256_mib_unless_told_otherwise() -> None:
    assert DEFAULT_CAP == 256 * MIB


@pytest.mark.parametrize(
    "sealed", [seal(b"[1]"), seal(TEXT), seal(TEXT, codec="gzip")], ids=lambda sealed: sealed.codec
)
def test_whatever_does_not_match_is_corrupt(sealed: Sealed) -> None:
    other = sha256(b"other").hexdigest()
    data = sealed.data
    for changed in (
        {"output_hash": other},
        {"output_hash": sealed.output_hash.upper()},
        {"output_hash": ""},
        {"size": sealed.size + 1},
        {"size": sealed.size - 1},
        {"size": 0},
        {"size": -1},
        {"size": DEFAULT_CAP + 1},
        {"data": data[:-1]},
        {"data": data + b"\0"},
        {"data": data + data},
        {"data": b""},
        {"data": data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]},
        {"codec": "json" if sealed.codec != "json" else "json+zstd"},
        {"codec": "json+zstd" if sealed.codec != "json+zstd" else "json+gzip"},
        {"codec": "pickle"},
        {"codec": "JSON"},
        {"codec": ""},
        {"cap": sealed.size - 1},
    ):
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                opened(sealed, **changed)


@pytest.mark.parametrize("sealed", [seal(TEXT), seal(TEXT, codec="gzip")], ids=lambda sealed: sealed.codec)
def test_every_cut_and_every_flipped_byte_is_corrupt_even_without_a_recorded_hash(sealed: Sealed) -> None:
    for cut in range(len(sealed.data)):
        with pytest.raises(CorruptRecord):
            opened(sealed, data=sealed.data[:cut], output_hash=None)
    for at in range(len(sealed.data)):
        flipped = sealed.data[:at] + bytes([sealed.data[at] ^ 0x40]) + sealed.data[at + 1 :]
        try:
            found = opened(sealed, data=flipped)
        except CorruptRecord:
            continue
        assert found == TEXT  # a byte of the header that decides nothing


def test_several_members_are_corrupt() -> None:
    for data in (
        gzip.compress(TEXT) + gzip.compress(b""),
        gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]),
        gzip.compress(TEXT) + b"\0" * 512,
    ):
        with pytest.raises(CorruptRecord):
            unseal("json+gzip", data, size=len(TEXT), output_hash=None)
        with pytest.raises(CorruptRecord):
            unseal("json+gzip", data, size=None, output_hash=None)
    zstd = zstandard.ZstdCompressor().compress
    for data in (
        zstd(TEXT) + zstd(b""),
        zstd(TEXT[:100]) + zstd(TEXT[100:]),
        zstd(TEXT) + b"\x50\x2a\x4d\x18\0\0\0\0",
    ):
        with pytest.raises(CorruptRecord):
            unseal("json+zstd", data, size=None, output_hash=None)


def bombs() -> dict[str, bytes]:
    zeros = bytes(MIB)
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    gzipped = b"".join(stream.compress(zeros) for _ in range(200)) + stream.flush()
    unsized = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    zstd = b"".join(unsized.compress(zeros) for _ in range(200)) + unsized.flush()
    return {"json+gzip": gzipped, "json+zstd": zstd}


@pytest.mark.parametrize("codec", ["json+gzip", "json+zstd"])
@pytest.mark.parametrize("size", [None, 1000, 8 * MIB])
def test_a_bomb_is_stopped_at_the_cap(codec: str, size: int | None) -> None:
    bomb = bombs()[codec]
    assert len(bomb) < MIB

    def burst() -> None:
        with pytest.raises(CorruptRecord):
            unseal(codec, bomb, size=size, output_hash=None, cap=8 * MIB)

    assert peak_of(burst) < 2 * 8 * MIB + 2 * MIB


def test_a_frame_that_claims_more_than_the_cap_makes_no_room_for_it() -> None:
    claiming = zstandard.ZstdCompressor().compress(bytes(64 * MIB))

    def burst() -> None:
        with pytest.raises(CorruptRecord, match="claims"):
            unseal("json+zstd", claiming, size=None, output_hash=None, cap=MIB)

    assert peak_of(burst) < MIB


HUNDRED_MB = """
from durable_core.codec import decode, encode
from durable_core.envelope import seal, unseal
from tests.system import peak_kib

value = {kind}"0123456789" * 10_000_000
before = peak_kib()
raw = encode(value)
sealed = seal(raw)
del raw
assert decode(unseal(sealed.codec, sealed.data, size=sealed.size, output_hash=sealed.output_hash)) == value
print((peak_kib() - before) // 1024)
"""


@pytest.mark.parametrize("kind", ["", "b"])
def test_a_hundred_megabytes_go_through_in_less_than_six_hundred_more(kind: str) -> None:
    """Text, and bytes, which are base64 on their way."""
    done = subprocess.run(
        [sys.executable, "-c", HUNDRED_MB.replace("{kind}", kind)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 100 < int(done.stdout) < 600
