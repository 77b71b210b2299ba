"""Which process drives a run, and whether it is dead for certain.

Dead for certain means: the same host, boot and PID namespace as ours, and no process with that pid and start
time. If any of this is unknown the process counts as alive, and only the end of its lease frees its runs.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from pathlib import Path

from durable_core.engine import invocation
from durable_core.errors import CorruptRecord
from durable_core.records import parse_object

_PROC = Path("/proc")
# On Lambda every sandbox may have the same host name, boot id and pids: it is started from one snapshot.
_ON_LAMBDA = "AWS_LAMBDA_FUNCTION_NAME"


@functools.lru_cache(maxsize=2)
def _described(pid: int) -> str:
    return json.dumps(
        {
            "host": socket.gethostname(),
            "boot": "" if _ON_LAMBDA in os.environ else _read(_PROC / "sys/kernel/random/boot_id"),
            "pid_namespace": _link(_PROC / "self/ns/pid"),
            "pid": pid,
            "started": _start_time(pid),
        },
        separators=(",", ":"),
    )


def this_process() -> str:
    """This process as a header's `owner_process`: JSON."""
    return _described(os.getpid())  # by pid, so that a forked child describes itself


def is_dead(owner_process: str | None) -> bool:
    """Whether the process that a header names is dead for certain."""
    try:
        owner = parse_object(owner_process)
    except CorruptRecord:
        return False
    here = parse_object(this_process())
    for known in ("host", "boot", "pid_namespace"):
        if not owner.get(known) or owner.get(known) != here.get(known):
            return False
    pid, started = owner.get("pid"), owner.get("started")
    if not isinstance(pid, int) or not isinstance(started, int):
        return False
    return _start_time(pid) != started


def told(owner_process: str | None) -> str:
    """The process as a person reads it."""
    if (named := invocation.told(owner_process)) is not None:
        return named
    try:
        owner = parse_object(owner_process)
    except CorruptRecord:
        owner = {}
    if owner and owner == parse_object(this_process()):
        return f"this process ({owner.get('pid')} on {owner.get('host')}), in another task or event loop,"
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'an unknown host')}"


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to a process's start; None when there is none, or it only waits to be reaped."""
    stat = _read(_PROC / str(pid) / "stat")
    if not stat:
        return None
    # The name in brackets may hold anything, brackets too: what follows the last one is state (field 3),
    # parent, ….
    values = stat[stat.rindex(")") + 2 :].split()
    if values[0] in "ZX" and len(_threads(pid)) <= 1:  # a zombie; one with threads left still works
        return None
    return int(values[19])


def _threads(pid: int) -> list[str]:
    try:
        return [entry.name for entry in (_PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


def _read(path: Path) -> str:
    """A file of the kernel's; empty where there is none."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
