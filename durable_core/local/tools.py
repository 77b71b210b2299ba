"""What the local cloud needs beside this package: the emulator, and the runtime client for it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

EMULATOR_VARIABLE: Final = "DURABLE_LAMBDA_EMULATOR"
_MACHINES: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_IN_PACKAGES: Final = Path("samcli", "local", "rapid")
_RUNTIME: Final = ("awslambdaric", "simplejson", "snapshot-restore-py")


def runs_emulator() -> bool:
    """Whether this system can: it is a program for Linux."""
    return sys.platform == "linux"


def find_emulator(project: Path) -> Path:
    """The Lambda runtime interface emulator: named by a variable, or in an installed `aws-sam-cli`.

    Args:
        project: May have `.venv-sam`.

    Raises:
        UsageError: It isn't here.
    """
    named = os.environ.get(EMULATOR_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise UsageError(f"{EMULATOR_VARIABLE} names {named}, which isn't there", remedy="Mend it")
        return Path(named)
    program = f"aws-lambda-rie-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    for packages in _installations(project):
        found = packages / _IN_PACKAGES / program
        if found.is_file():
            return found
    raise UsageError(
        f"the Lambda runtime interface emulator isn't here ({program}, a part of aws-sam-cli)",
        remedy="scripts/sam.sh --version installs it. Or name it by "
        f"{EMULATOR_VARIABLE}, or go without: --plain",
    )


def runnable(emulator: Path, folder: Path) -> Path:
    """The emulator as a program: a wheel's files may lack the permission to run."""
    if os.access(emulator, os.X_OK):
        return emulator
    copy = folder / emulator.name
    shutil.copyfile(emulator, copy)
    copy.chmod(0o755)
    return copy


def gather_runtime(folder: Path) -> None:
    """Links the runtime client and what it needs into an empty folder, so that nothing else is on its path.

    Raises:
        UsageError: It isn't installed.
    """
    for name in _RUNTIME:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError as error:
            raise UsageError(f"{name} isn't installed", remedy="pip install 'durable-core[local]'") from error
        for entry in {Path(str(file)).parts[0] for file in files} - {"..", "__pycache__"}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(entry)))
            (folder / entry).symlink_to(source)


def _installations(project: Path) -> Iterator[Path]:
    """Folders of packages in which `aws-sam-cli` may be."""
    yield from (project / ".venv-sam").glob("lib/python*/site-packages")
    yield from (Path(entry) for entry in sys.path if entry)
    sam = shutil.which("sam")
    if sam:
        yield from Path(sam).resolve().parents[1].glob("lib/python*/site-packages")
