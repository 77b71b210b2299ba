"""Files that pretend to be exported runs: each is refused whole, before anything is written."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_core import CorruptRecord, DurableError, DurableWorkflowExecutor
from durable_core.engine import bundle_reading
from durable_core.errors import SchemaTooNew
from durable_core.journal.memory import MemoryJournal
from tests.damages import RUN, run_everything

Parts = dict[str, bytes]
OTHER_HASH = "0" * 64


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file that can be taken in."""
    path = tmp_path_factory.mktemp("bundles") / "sound"

    async def exported() -> None:
        executor = DurableWorkflowExecutor("memory://")
        await run_everything(executor)
        await executor.export_run(RUN, path)

    asyncio.run(exported())
    return path.read_bytes()


def parts_of(sound: bytes) -> Parts:
    with zipfile.ZipFile(io.BytesIO(sound)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def zipped(parts: Parts, *more: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in (*parts.items(), *more):
            opened.writestr(name, data)
    return made.getvalue()


def attested(parts: Parts) -> Parts:
    """The same with a manifest that has the hashes and sizes of its parts: only what they say is wrong."""
    manifest = json.loads(parts["manifest.json"])
    for name, part in manifest["parts"].items():
        data = parts[name]
        part |= {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
        if name.endswith(".jsonl"):
            part["amount"] = data.count(b"\n")
    return parts | {"manifest.json": json.dumps(manifest).encode()}


def refused(tmp_path: Path, data: bytes) -> DurableError:
    """Why a file is refused; nothing of it is in the store."""
    path = tmp_path / "hostile"
    path.write_bytes(data)
    executor = DurableWorkflowExecutor("memory://")
    with pytest.raises(DurableError) as caught:
        asyncio.run(executor.import_run(path))
    journal: Any = executor.store.journal
    assert isinstance(journal, MemoryJournal)
    blobs: Any = executor.store.blobs
    assert (journal.headers, journal.records, journal.logs, journal.letters, blobs.held) == (
        {},
        {},
        {},
        {},
        {},
    )
    return caught.value


def test_the_sound_file_is_taken_in(tmp_path: Path, sound: bytes) -> None:
    """Also after this module has taken it apart and put it together."""
    for data in (sound, zipped(attested(parts_of(sound)))):
        path = tmp_path / "sound"
        path.write_bytes(data)
        executor = DurableWorkflowExecutor("memory://")
        assert asyncio.run(executor.import_run(path)).run_id == RUN


# ---- What is no such file ----


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"hello" * 100, b"PK\x05\x06" + bytes(18), zipped({}), zipped({"a": b"b"})],
    ids=["nothing", "two bytes", "text", "an end of a zip", "an empty zip", "another zip"],
)
def test_what_is_no_exported_run_is_refused(tmp_path: Path, data: bytes) -> None:
    assert isinstance(refused(tmp_path, data), CorruptRecord)


def test_a_file_that_is_cut_short_anywhere_is_refused(tmp_path: Path, sound: bytes) -> None:
    for size in random.Random(7).sample(range(len(sound)), 40):
        assert isinstance(refused(tmp_path, sound[:size]), CorruptRecord)


def test_a_file_with_any_byte_changed_is_refused_or_says_the_same(tmp_path: Path, sound: bytes) -> None:
    """A zip has bytes that nobody reads, such as times."""
    drawn = random.Random(8)
    refusals = 0
    for at in drawn.sample(range(len(sound)), 60):
        changed = bytearray(sound)
        changed[at] ^= drawn.randrange(1, 256)
        path = tmp_path / "changed"
        path.write_bytes(changed)
        executor = DurableWorkflowExecutor("memory://")
        try:
            asyncio.run(executor.import_run(path))
        except CorruptRecord:
            refusals += 1
        else:
            assert asyncio.run(executor.verify(RUN)).is_sound
    assert refusals > 50


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "..\\x", "steps.jsonl/", "blobs.bin", "header.json", "extra"],
)
def test_another_part_is_refused_whatever_its_name(tmp_path: Path, sound: bytes, name: str) -> None:
    """Besides the known ones, twice one of them, or in the place of one."""
    parts = parts_of(sound)
    with pytest.warns(UserWarning, match="Duplicate") if name in parts else _nothing():
        twice = zipped(parts, (name, b"x"))
    assert isinstance(refused(tmp_path, twice), CorruptRecord)
    instead = {name if old == "events.jsonl" else old: data for old, data in parts.items()}
    assert isinstance(refused(tmp_path, zipped(instead)), CorruptRecord)


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


# ---- Too much ----


def test_a_directory_that_claims_many_parts_is_not_read(
    tmp_path: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was opened")

    end = sound.rindex(b"PK\x05\x06")
    monkeypatch.setattr(bundle_reading.zipfile, "ZipFile", never)
    for at, value in ((10, struct.pack("<H", 65535)), (12, struct.pack("<L", 2**31))):
        data = sound[: end + at] + value + sound[end + at + len(value) :]
        assert "parts" in refused(tmp_path, data).message


def test_a_part_that_grows_when_it_is_unpacked_is_read_no_further_than_a_line(
    tmp_path: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the manifest says of its size."""
    monkeypatch.setattr(bundle_reading, "MAX_LINE_BYTES", 1_000_000)
    parts = attested(parts_of(sound) | {"steps.jsonl": bytes(30_000_000)})
    assert "more than 1000000 bytes" in refused(tmp_path, zipped(parts)).message


def test_a_manifest_of_any_size_is_not_read(tmp_path: Path, sound: bytes) -> None:
    parts = parts_of(sound) | {"manifest.json": b" " * 10_000_000}
    assert "too large" in refused(tmp_path, zipped(parts)).message


def test_a_value_that_grows_when_it_is_unpacked_is_refused(tmp_path: Path, sound: bytes) -> None:
    import base64

    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(300_000_000))

    def grow(step: dict[str, Any]) -> None:
        step |= {
            "output_data": base64.b64encode(bomb).decode(),
            "codec": "json+zstd",
            "output_size": 300_000_000,
        }

    assert "limit" in refused(tmp_path, with_step(sound, "give", grow)).message


def test_a_blob_that_claims_any_size_is_not_read(tmp_path: Path, sound: bytes) -> None:
    for size in (2**40, -1, 10**30, True, "5"):
        line = json.dumps({"name": f"{'a' * 20}-{OTHER_HASH}", "size_bytes": size}).encode() + b"\n"
        parts = attested(parts_of(sound) | {"blobs.bin": line + b"x"})
        assert isinstance(refused(tmp_path, zipped(parts)), CorruptRecord)


# ---- Wrong manifests ----


def with_manifest(sound: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    parts = parts_of(sound)
    manifest = json.loads(parts["manifest.json"])
    change(manifest)
    return zipped(parts | {"manifest.json": json.dumps(manifest).encode()})


def set_part(name: str, **said: object) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["parts"][name].update(said)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(format="zip"),
        lambda m: m.update(version=0),
        lambda m: m.update(version="1"),
        lambda m: m.update(version=True),
        lambda m: m.update(run_id="r2"),
        lambda m: m.update(run_id="../r1"),
        lambda m: m.update(run_id=None),
        lambda m: m.update(root_hash=OTHER_HASH),
        lambda m: m.pop("root_hash"),
        lambda m: m.pop("parts"),
        lambda m: m["parts"].pop("blobs.bin"),
        set_part("steps.jsonl", sha256=OTHER_HASH),
        set_part("steps.jsonl", amount=10**18),
        set_part("steps.jsonl", size_bytes=10**18),
        set_part("steps.jsonl", size_bytes="1"),
        set_part("blobs.bin", amount=0),
        set_part("blobs.bin", sha256=None),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, sound: bytes, change: Callable[[dict[str, Any]], object]
) -> None:
    assert isinstance(refused(tmp_path, with_manifest(sound, change)), CorruptRecord)


def test_a_newer_version_says_so(tmp_path: Path, sound: bytes) -> None:
    error = refused(tmp_path, with_manifest(sound, lambda m: m.update(version=2)))
    assert isinstance(error, SchemaTooNew)
    assert "version 2" in error.message


# ---- Wrong records, with the right hashes ----


def with_lines(sound: bytes, name: str, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    parts = parts_of(sound)
    lines = [json.loads(line) for line in parts[name].splitlines()]
    change(lines)
    return zipped(attested(parts | {name: b"".join(json.dumps(line).encode() + b"\n" for line in lines)}))


def with_step(sound: bytes, step_id: str, change: Callable[[dict[str, Any]], object]) -> bytes:
    return with_lines(
        sound, "steps.jsonl", lambda lines: change(next(one for one in lines if one["step_id"] == step_id))
    )


def set_step(step_id: str, /, **columns: object) -> Callable[[bytes], bytes]:
    return lambda sound: with_step(sound, step_id, lambda step: step.update(columns))


def set_header(**columns: object) -> Callable[[bytes], bytes]:
    return lambda sound: with_lines(sound, "header.json", lambda lines: lines[0].update(columns))


def in_lines(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Callable[[bytes], bytes]:
    return lambda sound: with_lines(sound, name, change)


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "an output": set_step("give", output_data="IngiCg=="),
    "an output's hash": set_step("give", output_hash=OTHER_HASH),
    "base64": set_step("give", output_data="%%%"),
    "a key": set_step("give", idempotency_key=OTHER_HASH),
    "a type": set_step("give", attempt="1"),
    "a float": set_step("give", attempt=1.0),
    "a huge number": set_step("give", crashes=10**30),
    "no number": set_step("give", fence=None),
    "an unknown column": set_step("give", colour="x"),
    "another run": set_step("give", run_id="r2"),
    "a null character": set_step("give", detail="\0"),
    "half a character": set_step("give", kind="\ud800"),
    "a step id that is a path": set_step("give", step_id="../../give"),
    "a pointer out of the store": set_step("scramble", output_ref="../../etc/passwd"),
    "a pointer to another run": set_step("scramble", output_ref=f"runs/r2/{'a' * 20}-{OTHER_HASH}"),
    "a pointer to no blob": set_step("scramble", output_ref=f"runs/{RUN}/{'a' * 20}-{OTHER_HASH}"),
    "a step twice": in_lines("steps.jsonl", lambda lines: lines.insert(0, lines[0])),
    "steps out of order": in_lines("steps.jsonl", lambda lines: lines.reverse()),
    "a step left out": in_lines("steps.jsonl", lambda lines: lines.pop(0)),
    "a segment left out": in_lines("segments.jsonl", lambda lines: lines.pop(0)),
    "a segment somewhere else": in_lines("segments.jsonl", lambda lines: lines[-1].update(seq=10**12)),
    "an event left out": in_lines("events.jsonl", lambda lines: lines.pop(0)),
    "an event's name": in_lines("events.jsonl", lambda lines: [one.update(name="a!b") for one in lines]),
    "two headers": in_lines("header.json", lambda lines: lines.append(lines[0])),
    "no header": in_lines("header.json", lambda lines: lines.clear()),
    "a driven run": set_header(status="RUNNING", owner="x"),
    "a tombstone": set_header(status="TOMBSTONE"),
    "a run half gone": set_header(status="PRUNING"),
    "an unknown status": set_header(status="DONE"),
    "an owner": set_header(owner="x"),
    "a workflow's name": set_header(workflow="\x1b[2J"),
    "a session's name": set_header(session_id="../x"),
    "a parent's name": set_header(forked_from="/etc"),
    "a low fence": set_header(fence=0),
    "inputs": set_header(input_data_hash=OTHER_HASH),
    "counts": set_header(counts='{"COMMITTED":99}'),
    "a deep column": set_header(error="[" * 100_000),
    "no JSON": lambda sound: zipped(attested(parts_of(sound) | {"events.jsonl": b"{\n"})),
    "a deep line": lambda sound: zipped(attested(parts_of(sound) | {"events.jsonl": b"[" * 100_000 + b"\n"})),
    "a list": lambda sound: zipped(attested(parts_of(sound) | {"events.jsonl": b"[]\n"})),
    "no blobs": lambda sound: zipped(attested(parts_of(sound) | {"blobs.bin": b""})),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_is_wrong_is_refused_though_its_hashes_are_right(
    tmp_path: Path, sound: bytes, name: str
) -> None:
    assert isinstance(refused(tmp_path, WRONG[name](sound)), CorruptRecord)


def test_a_blob_that_nothing_points_to_is_refused(tmp_path: Path, sound: bytes) -> None:
    data = b"stowaway"
    line = json.dumps({"name": f"{'a' * 20}-{hashlib.sha256(data).hexdigest()}", "size_bytes": len(data)})
    parts = parts_of(sound)
    manifest = json.loads(parts["manifest.json"])
    manifest["parts"]["blobs.bin"]["amount"] += 1
    parts |= {
        "manifest.json": json.dumps(manifest).encode(),
        "blobs.bin": parts["blobs.bin"] + line.encode() + b"\n" + data,
    }
    assert "nothing points to it" in refused(tmp_path, zipped(attested(parts))).message
