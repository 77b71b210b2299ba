from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.errors import RunFailed
from functions.workflows.compliance_scan import FingerprintKeyChanged, compliance_scan
from functions.workflows.scanning import scan
from functions.workflows.scanning.models import DocumentRef, DocumentScan, ScanSummary
from scripts import make_documents

REPOSITORY = Path(__file__).resolve().parents[2]
AS_OF = date(2026, 1, 1)

DRIVER = """
import asyncio, datetime, sys
from durable_core import DurableWorkflowExecutor
from functions.workflows.compliance_scan import compliance_scan

folder, store, report_dir, scan_log = sys.argv[1:]
executor = DurableWorkflowExecutor(store=f"sqlite:///{store}")
inputs = {"folders": [folder], "report_dir": report_dir, "scan_log": scan_log}
asyncio.run(executor.run(compliance_scan, run_id="scan", as_of=datetime.date(2026, 1, 1), **inputs))
"""

DEADLY = """
import contextlib
import os
from functions.workflows.scanning import scan

real = scan.scan_one

def scan_one(ref, **options):
    if ref.name.endswith("empty.txt"):
        os._exit(9)
    return real(ref, **options)

scan.scan_one = scan_one
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAN_FINGERPRINT_KEY", "a secret of the tests")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_documents.make_folder(tmp_path / "made", count=40).root


def driver(folder: Path, tmp_path: Path, report: str, program: str = DRIVER) -> subprocess.Popen[bytes]:
    log = tmp_path / "scan.log"
    arguments = [folder, tmp_path / "runs.db", tmp_path / report, log]
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], cwd=REPOSITORY)


async def run_whole(folder: Path, tmp_path: Path, report: str, store: str = "whole.db") -> ScanSummary:
    executor = DurableWorkflowExecutor(store=f"sqlite:///{tmp_path / store}")
    result = await executor.run(
        compliance_scan, folders=[str(folder)], report_dir=str(tmp_path / report), as_of=AS_OF
    )
    assert isinstance(result.output, ScanSummary)
    return result.output


@pytest.mark.slow
async def test_a_scan_killed_in_the_middle_resumes_and_writes_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "scan.log"
    process = driver(folder, tmp_path, "resumed")
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_bytes().count(b"\n") < 15:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = log.read_text().splitlines()
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as left:
        ((durable,),) = left.execute("SELECT coalesce(max(succeeded + failed), 0) FROM segments")

    assert driver(folder, tmp_path, "resumed").wait(timeout=120) == 0
    scans = Counter(log.read_text().splitlines())
    summary = await run_whole(folder, tmp_path, "whole")
    assert len(before) < summary.documents == len(scans)
    assert sum(scans.values()) - len(scans) <= len(before) - durable  # what was written isn't scanned again
    assert max(scans.values()) <= 2
    for name in ("compliance.json", "compliance.csv"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


async def test_a_run_that_has_ended_gives_its_recorded_summary_without_scanning(
    folder: Path, tmp_path: Path
) -> None:
    executor = DurableWorkflowExecutor(store=f"sqlite:///{tmp_path / 'runs.db'}")
    log = tmp_path / "scan.log"
    inputs = {"folders": [str(folder)], "report_dir": str(tmp_path / "r"), "scan_log": str(log)}
    first = await executor.run(compliance_scan, **inputs)
    scans = log.read_bytes()
    second = await executor.run(compliance_scan, resume_run_id=first.run_id)
    assert second.output == first.output
    assert isinstance(second.output, ScanSummary)
    assert log.read_bytes() == scans


async def test_one_document_that_cannot_be_scanned_does_not_end_the_batch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scan.scan_one

    def fails_on_one(ref: DocumentRef, **options: object) -> DocumentScan:
        if ref.name.endswith("empty.txt"):
            raise ZeroDivisionError("a defect in a detector")
        return real(ref, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(scan, "scan_one", fails_on_one)
    summary = await run_whole(folder, tmp_path, "r")
    assert summary.unreadable == 4  # with a binary file and two links that lead nowhere good
    assert "scan failed: " in (tmp_path / "r/compliance.csv").read_text()


@pytest.mark.slow
def test_a_document_that_kills_its_process_each_time_does_not_end_the_batch(
    folder: Path, tmp_path: Path
) -> None:
    ends = list[int]()
    while not ends or (ends[-1] == 9 and len(ends) < 8):
        ends.append(driver(folder, tmp_path, "r", DEADLY + DRIVER).wait(timeout=120))
    # The first death didn't tell which document had been its cause; then its limit of three.
    assert ends == [9, 9, 9, 9, 0]
    scans = Counter((tmp_path / "scan.log").read_text().splitlines())
    (deadly,) = [name for name in scans if name.endswith("empty.txt")]
    assert scans.pop(deadly) == 4
    row = next(line for line in (tmp_path / "r/compliance.csv").read_text().splitlines() if deadly in line)
    assert "scan failed: CrashLimitReached" in row
    assert "unreadable" in row


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_documents_are_in_work_than_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    real, lock, seen = scan.scan_one, threading.Lock(), [0]

    def counted(ref: DocumentRef, **options: object) -> DocumentScan:
        with lock:
            seen.append(seen[-1] + 1)
        try:
            return real(ref, **options)  # type: ignore[arg-type]
        finally:
            with lock:
                seen.append(seen[-1] - 1)

    monkeypatch.setattr(scan, "scan_one", counted)
    executor = DurableWorkflowExecutor(store=f"sqlite:///{tmp_path / 'runs.db'}")
    inputs = {"folders": [str(folder)], "report_dir": str(tmp_path / "r"), "max_concurrency": at_once}
    await executor.run(compliance_scan, **inputs)
    assert 0 < max(seen) <= at_once


async def test_a_resumed_run_refuses_another_fingerprint_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = DurableWorkflowExecutor(store=f"sqlite:///{tmp_path / 'runs.db'}")
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(RunFailed):
        await executor.run(
            compliance_scan, run_id="r", folders=[str(folder)], report_dir=str(blocker / "report")
        )
    monkeypatch.setenv("SCAN_FINGERPRINT_KEY", "another")
    with pytest.raises(RunFailed) as caught:
        await executor.run(compliance_scan, resume_run_id="r")
    assert isinstance(caught.value.__cause__, FingerprintKeyChanged)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({}, "nothing to scan"),
        ({"folders": ["x"], "retention_years": -1}, "retention_years"),
        ({"folders": ["x"], "max_concurrency": 0}, "max_concurrency"),
    ],
)
async def test_inputs_that_cannot_be_meant_are_refused(
    inputs: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    executor = DurableWorkflowExecutor(store=f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(RunFailed, match=complaint):
        await executor.run(compliance_scan, **inputs)
