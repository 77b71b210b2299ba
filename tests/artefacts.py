"""Tools and artefacts that take long to make: once for all test processes, anew if their sources change."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 600


def sam_python() -> Path:
    """The Python of the environment that has SAM and cfn-lint; made if need be."""
    _once("sam", lambda: None, lambda: _run("bash", "scripts/sam.sh", "--version"))
    return ROOT / ".venv-sam" / "bin" / "python"


def built(target: str) -> Path:
    """The folder with the functions built for a target, `host` or `arm64`."""
    folder = ROOT / ".aws-sam" / ("host" if target == "host" else "build")
    stamp = folder / "made-from"

    def found() -> str | None:
        return stamp.read_text() if stamp.is_file() else None

    def make() -> None:
        sources = _sources()
        told = _run("bash", "scripts/build.sh", target)
        _log(target).write_text(told)
        stamp.write_text(sources)

    # One lock for both: SAM keeps notes of its own that they share.
    _once("build", lambda: None if found() != _sources() else "", make)
    return folder


def log_of(target: str) -> str:
    """What was told when that was built."""
    return _log(target).read_text()


def _log(target: str) -> Path:
    return ROOT / ".aws-sam" / f"{target}.log"


def _once(name: str, is_there: Callable[[], str | None], make: Callable[[], object]) -> None:
    """Makes something unless it is there, one test process at a time."""
    with alone(name):
        if is_there() is None:
            make()


@contextmanager
def alone(name: str) -> Iterator[None]:
    """While it lasts no other test process makes the same."""
    locks = ROOT / "build"
    locks.mkdir(exist_ok=True)
    with (locks / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, "SAM_CLI_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def _sources() -> str:
    """A hash of everything that a build takes."""
    digest = hashlib.sha256()
    places = ("durable_core", "functions", "infra/build", "template.yaml", "scripts/build.sh")
    for place in places:
        for path in sorted((ROOT / place).rglob("*")) or [ROOT / place]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
