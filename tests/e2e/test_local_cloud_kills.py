"""A scan in the local cloud, from built functions, while these are killed: a local run's report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.outcomes import outcomes_of
from functions.workflows.compliance_scan import compliance_scan
from scripts import make_documents
from tests.cloud import ENVIRONMENT
from tests.deployed import Deployed, deployed
from tests.waiting import full

AS_OF = date(2026, 1, 1)
DOCUMENTS = 400 if full() else 200
WORKERS = 4
# Each costs the time until the lease is over.
KILLS = ("emulator", "runtime", "stuck") * (8 if full() else 1)


class Killer(threading.Thread):
    """Kills what runs the scan, each time that it has come a good deal further.

    Killing the emulator leaves the runtime running: it has lost its messages and goes on for a while, an old
    owner that nobody can reach. A stuck runtime is killed by the emulator at the function's time-out.
    """

    def __init__(self, cloud: Deployed, log: Path) -> None:
        super().__init__(daemon=True)
        self.cloud = cloud
        self.log = log
        self.done: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        for number, how in enumerate(KILLS):
            wanted = DOCUMENTS * (number + 1) // (len(KILLS) + 1)
            while self.scans() < wanted or not self.strike(how):
                if self.stop.wait(0.002):
                    return
            self.done.append(how)

    def strike(self, how: str) -> bool:
        """Whether an invocation comes to its end by it: one that was struck may just have been over."""
        crashes = self.cloud.outcomes()["crash"]
        busy = [one for one in self.at_work() if is_at_work(one[1])]
        if not busy:
            return False
        emulator, runtime = busy[0]
        pid, number = {
            "emulator": (emulator, signal.SIGKILL),
            "runtime": (runtime, signal.SIGKILL),
            "stuck": (runtime, signal.SIGSTOP),
        }[how]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            if how != "stuck":
                return self.comes_true(lambda: self.cloud.outcomes()["crash"] > crashes)
            if not self.comes_true(lambda: busy[0] not in self.at_work(), limit_s=0.2):
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    def at_work(self) -> list[list[int]]:
        """The processes of the sandboxes that have an invocation."""
        functions = [self.cloud.cloud.functions[name] for name in ("WorkChunk", "DriveRun")]
        found = [one for function in functions for one in function.processes(at_work=True)]
        return [one for one in found if len(one) == 2]

    def comes_true(self, condition: Callable[[], bool], limit_s: float = 5) -> bool:
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end or self.stop.wait(0.002):
                return False
        return True

    def scans(self) -> int:
        return len(set(self.log.read_text().splitlines())) if self.log.exists() else 0


def is_at_work(pid: int) -> bool:
    """Whether a process has used the processor just now."""

    def ticks() -> int:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.03)
    return ticks() > before


@pytest.mark.slow
async def test_a_scan_whose_functions_are_killed_writes_the_report_of_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_documents.make_folder(tmp_path / "made", count=DOCUMENTS).root
    local = DurableWorkflowExecutor(store=f"sqlite:///{tmp_path / 'local.db'}")
    whole = await local.run(
        compliance_scan, folders=[str(folder)], report_dir=str(tmp_path / "local"), as_of=AS_OF
    )
    total = whole.output.documents
    assert total >= DOCUMENTS

    with deployed(tmp_path / "cloud", concurrency=WORKERS) as cloud:
        log = tmp_path / "scans.log"
        inputs = {"folders": [str(folder)], "report_dir": str(tmp_path / "far"), "scan_log": str(log)}
        inputs |= {"distribute": True, "chunk_size": 10}
        killer = Killer(cloud, log)
        cloud.start("compliance_scan", "scan", **inputs, as_of=AS_OF.isoformat())
        killer.start()
        try:
            ended = cloud.ended("scan", limit_s=60 + 40 * len(KILLS))
        finally:
            killer.stop.set()
            killer.join()
        assert ended["status"] == "COMPLETED", json.dumps(ended["error"])
        assert killer.done == list(KILLS)
        for file in ("compliance.json", "compliance.csv"):
            assert (tmp_path / "far" / file).read_bytes() == (tmp_path / "local" / file).read_bytes()
        assert cloud.letters() == []
        outcomes = cloud.outcomes()
        assert outcomes["crash"] >= KILLS.count("emulator") + KILLS.count("runtime")
        assert outcomes["timeout"] >= KILLS.count("stuck")
        assert outcomes["error"] == cloud.asked_again
        assert len(cloud.cloud.functions["WorkChunk"].processes()) >= WORKERS

        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        executor = DurableWorkflowExecutor(store=cloud.cloud.store_url)
        try:
            assert await committed_items(executor) == list(range(total))
            report = await executor.verify("scan")
            found = [one for run in report.runs for one in run.findings]
            assert [one for one in found if one.severity != "notice"] == []
        finally:
            await executor.close()


async def committed_items(executor: DurableWorkflowExecutor) -> list[int]:
    """The items of the scan that have an output, once for each output that there is."""
    found: list[int] = []
    journal, chunk = executor.store.journal, 0
    while True:
        seen = False
        async for page in journal.segments("scan", "scan_document", chunk):
            seen = True
            found += [one.item_index for segment in page for one in outcomes_of(segment) if one.succeeded]
        if not seen:
            return sorted(found)
        chunk += 1
