"""The power is cut at every moment of a run on SQLite: no outcome that was acknowledged is lost.

`strace` tells every write, sync and name of the files of one run. From that each moment is built anew: what
had been synced is there, and of the rest nothing, all of it, or some of it with a torn end. Each time the
store must open, be sound, and have every outcome that the workflow had been told of.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from durable_core import DurableWorkflowExecutor
from tests.crashes.powered import STEPS
from tests.waiting import full

ROOT = Path(__file__).parents[2]
CALLS = (
    "pwrite64,write,fdatasync,fsync,ftruncate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,openat"
)
CUT_EVERY = 1 if full() else 9
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
_FILE = re.compile(r"^\d+<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Call(NamedTuple):
    """One call to the system."""

    name: str
    paths: tuple[str, ...]
    data: bytes = b""
    at: int | None = None  # of a file that is only appended to: at its end


@dataclass
class Disk:
    """Files as they are, and as they would be after a power cut.

    Attributes:
        synced: What is there for certain, by the file's number.
        pending: What was written since: lost, or not.
        names: Of files, as a folder that was synced has them.
        named: As they are now.
    """

    synced: dict[int, bytes] = field(default_factory=dict)
    pending: dict[int, list[Call]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)

    def take(self, call: Call) -> None:
        """What a call changes."""
        path = call.paths[0]
        if call.name == "openat" and path not in self.named:
            self.named[path] = len(self.synced)
            self.synced[self.named[path]] = b""
        elif call.name in ("pwrite64", "write", "ftruncate") and path in self.named:
            self.pending.setdefault(self.named[path], []).append(call)
        elif call.name in ("fdatasync", "fsync"):
            if path in self.named:
                number = self.named[path]
                self.synced[number] = written(self.synced[number], self.pending.pop(number, []))
                self.names[path] = number  # a file that was synced is found, says every file system in use
            self._sync_folder(path)
        elif call.name.startswith(("rename", "link")) and path in self.named:
            self.named[call.paths[1]] = self.named[path]
            if call.name.startswith("rename"):
                del self.named[path]
        elif call.name.startswith("unlink"):
            self.named.pop(path, None)

    def _sync_folder(self, folder: str) -> None:
        inside = {name for name in {*self.names, *self.named} if str(Path(name).parent) == folder}
        for name in inside:
            if name in self.named:
                self.names[name] = self.named[name]
            else:
                del self.names[name]

    def after_a_cut(self, drawn: random.Random | None, *, keeps: bool) -> dict[str, bytes]:
        """The files: without what wasn't synced, with all of it, or with some."""
        names = self.named if keeps else self.names
        found = {}
        for name, number in names.items():
            pending = self.pending.get(number, [])
            if drawn is not None:
                pending = [call for call in pending if drawn.random() < 0.5]
                if pending and drawn.random() < 0.5:
                    last = pending[-1]
                    pending[-1] = last._replace(data=last.data[: drawn.randrange(len(last.data) + 1)])
            elif not keeps:
                pending = []
            found[name] = written(self.synced[number], pending)
        return found


def written(data: bytes, calls: list[Call]) -> bytes:
    """The bytes of a file after some writes."""
    made = bytearray(data)
    for call in calls:
        if call.name == "ftruncate":
            size = call.at or 0
            made = made[:size] + bytes(max(0, size - len(made)))
            continue
        at = len(made) if call.at is None else call.at
        made += bytes(max(0, at - len(made)))
        made[at : at + len(call.data)] = call.data
    return bytes(made)


def text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def traced(folder: Path) -> Iterator[Call]:
    """Runs the workflow; gives the calls about files in the folder."""
    trace = folder.with_name("trace")
    tracing = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", "-o", str(trace)]
    running = [sys.executable, "-m", "tests.crashes.powered", str(folder)]
    subprocess.run([*tracing, *running], cwd=ROOT, check=True)
    for line in trace.read_text().splitlines():
        matched = _CALL.match(line)
        if matched is None or int(matched[3]) < 0:
            continue
        name, given = matched[1], matched[2]
        texts = [text(one) for one in _TEXT.findall(given)]
        on = _FILE.match(given)
        if on is not None:
            call = _on_a_file(name, text(on[1]).decode(), texts, given)
        else:
            if name == "openat" and "O_CREAT" not in given:
                continue
            call = Call(name, tuple(one.decode() for one in texts))
        if call.paths and call.paths[0].startswith(str(folder)):
            yield call


def _on_a_file(name: str, path: str, texts: list[bytes], given: str) -> Call:
    if name == "ftruncate":
        return Call(name, (path,), at=int(given.rpartition(",")[2]))
    at = int(given.rpartition(",")[2]) if name == "pwrite64" else None
    return Call(name, (path,), texts[0] if texts else b"", at)


def lay(files: dict[str, bytes], there: Path, place: Path) -> None:
    """Puts files into a folder of their own."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in files.items():
        if not name.endswith(("-shm", "acks")):  # an index that is made anew
            path = place / Path(name).relative_to(there)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


async def sound(files: dict[str, bytes], there: Path, place: Path, acknowledged: list[str]) -> None:
    """The store opens, is sound, and has every outcome that was acknowledged."""
    lay(files, there, place)
    async with DurableWorkflowExecutor(db_path=place / "runs.db") as executor:
        runs = await executor.list()
        if not acknowledged:
            return
        assert [run.run_id for run in runs] == ["r1"], f"the run is lost; {acknowledged} were acknowledged"
        report = await executor.verify("r1")
        assert report.is_sound, report.findings
        committed = {one.step_id: one for one in await executor.steps("r1") if one.status == "COMMITTED"}
        lost = [name for name in acknowledged if name != "the end" and name not in committed]
        assert lost == []
        if "the end" in acknowledged:
            assert runs[0].status == "COMPLETED"


@pytest.mark.slow
async def test_a_power_cut_at_any_moment_loses_no_acknowledged_outcome(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    disk, acknowledged, cuts = Disk(), list[str](), 0
    drawn = random.Random(1)
    for number, call in enumerate(traced(there)):
        if call.paths[0].endswith("/acks") and call.name == "write":
            acknowledged.append(call.data.decode().strip())
        disk.take(call)
        is_edge = call.name in ("fdatasync", "fsync") or call.paths[0].endswith("/acks")
        if number % CUT_EVERY == 0 or (is_edge and number % 3 == 0):
            for files in (
                disk.after_a_cut(None, keeps=False),
                disk.after_a_cut(None, keeps=True),
                disk.after_a_cut(drawn, keeps=True),
            ):
                cuts += 1
                await sound(files, there, tmp_path / "cut", acknowledged)
    assert len(acknowledged) == STEPS + 3
    assert cuts > 60


async def test_a_store_that_does_not_sync_is_found_out(tmp_path: Path) -> None:
    """The same without the syncs of its log: outcomes that were acknowledged are gone."""
    there = tmp_path / "there"
    there.mkdir()
    disk, acknowledged = Disk(), list[str]()
    for call in traced(there):
        if call.paths[0].endswith("/acks") and call.name == "write":
            acknowledged.append(call.data.decode().strip())
        if call.name == "fdatasync" and call.paths[0].endswith("-wal") and acknowledged:
            continue
        disk.take(call)
        if len(acknowledged) == 4:
            break
    with pytest.raises(AssertionError, match="small"):
        await sound(disk.after_a_cut(None, keeps=False), there, tmp_path / "cut", acknowledged)
