"""What the system tells of this process and of files, on Linux and on macOS."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

IS_LINUX = sys.platform == "linux"
MODULES_THAT_KILL = (
    "concurrency/test_checkpoint_sessions.py",
    "concurrency/test_postgres_sharing.py",
    "concurrency/test_races.py",
    "concurrency/test_sqlite_sharing.py",
    "crashes/test_power_cut.py",  # nor is there strace
    "crashes/test_soak.py",
    "e2e/test_agent_crew.py",
    "e2e/test_crashes.py",
    "e2e/test_interruption.py",
    "e2e/test_local_cloud_kills.py",
    "e2e/test_map_kills.py",
    "e2e/test_readme_walkthroughs.py",
    "e2e/test_shared_map_kills.py",
    "e2e/test_stopped_early.py",
    "e2e/test_two_processes.py",
    "e2e/test_workers.py",
    "infra/test_local_cloud.py",  # it ends sandboxes, which it finds by /proc
    "unit/test_process.py",  # it is about /proc
)
"""Test modules that do little else, beneath this folder."""


def peak_kib() -> int:
    """The most memory that this program has had."""
    if IS_LINUX:  # ru_maxrss would begin with the peak of its parent
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - iterdir tells no more


def name_of(handle: int, folder: Path) -> str:
    """The name of an open file or folder, if it is this folder or something in it; else nothing."""
    opened = os.fstat(handle)
    there = (path for path in (folder, *folder.rglob("*")) if os.path.samestat(path.stat(), opened))
    return next(there, Path()).name
