"""Faults of the protocol that show over a SQLite file: of the engine, and of the file's own statements."""

from __future__ import annotations

from tests.concurrency.faults import Fault

FAULTS_ON_SQLITE = (
    Fault(
        "suspend-without-count, on SQLite",
        "engine/suspension.py",
        "journal.leave, lease, departure, wake_count=header.wake_count)",
        "journal.leave, lease, departure)",
        scenario="suspend, signal",
        on="sqlite",
        walks=300,
    ),
    Fault(
        "sqlite-suspension-without-count",
        "journal/_sqlite_verbs.py",
        'f"{_LEAVE} AND wake_count = ?"',
        'f"{_LEAVE} AND ? >= 0"',
        scenario="suspend, signal",
        on="sqlite",
        walks=300,
    ),
    Fault(
        "sqlite-event-without-wake",
        "journal/_sqlite_below.py",
        "        wake_active(cursor, event.run_id, now_ms)\n",
        "",
        scenario="suspend, signal",
        on="sqlite",
        walks=300,
    ),
    Fault(
        "sqlite-event-taken-twice",
        "journal/_sqlite_below.py",
        "seq = ? AND taken_by IS NULL",
        "seq = ?",
        scenario="take, branches",
        on="sqlite",
        walks=300,
    ),
    Fault(
        "sqlite-chunk-end-without-wake",
        "journal/_sqlite_chunks.py",
        "    if applied and wakes:\n",
        "    if False:\n",
        scenario="shared map",
        on="sqlite",
        walks=300,
    ),
)
