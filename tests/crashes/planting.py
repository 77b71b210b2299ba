"""Plants faults in the package, one after the other, and says at which crash point each one shows.

    python -m tests.crashes.planting            all of them
    python -m tests.crashes.planting NAME ...   these

Each fault is planted in a process of its own, in the text of its module as it is imported: no file is
changed. A line of JSON says of each fault where it showed, or null.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# What the package imports, so that a fork only has the package itself to import.
import pydantic  # noqa: F401
import structlog  # noqa: F401
import zstandard  # noqa: F401

from tests.concurrency.faults import Fault
from tests.crashes.faults import FAULTS

PACKAGE = Path(__file__).parents[2] / "durable_core"


class Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module with another text."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._path = PACKAGE / fault.file
        self._name = "durable_core." + fault.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def get_filename(self, name: str) -> str:
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:
        if Path(os.fsdecode(path)) != self._path:
            raise OSError("no cache")  # what is planted is never kept
        right = self._path.read_text("utf-8")
        if right.count(self._fault.old) != 1:
            raise SystemExit(
                f"{self._fault.file} has changed: the text that {self._fault.name} changes is gone"
            )
        return right.replace(self._fault.old, self._fault.new).encode()


def shows_at(fault: Fault) -> str | None:
    """The first crash point that finds a fault, in this process."""
    sys.meta_path.insert(0, Planted(fault))
    from durable_core import configure_logging

    configure_logging(level="critical")
    from durable_core.testing.crash_trials import Trials, in_memory
    from durable_core.testing.simulated_process import Mode
    from tests.crashes.killing import ALL

    for checks_header in (True, False):
        try:
            trials = Trials(ALL[fault.scenario], lambda checks=checks_header: in_memory(checks_header=checks))
        except Exception as error:  # the fault may be found without any crash
            return f"unharmed: {error!r:.200}"
        points = [(write, mode, 0) for write, mode in trials.points()]
        points += [(one, Mode.OVERTAKEN, other.number) for one in trials.writes for other in trials.writes]
        for write, mode, other in points:
            try:
                found = trials.broken(write.number, mode, other)
            except Exception as error:  # a fault may break whatever it likes
                found = [repr(error)]
            if found:
                return f"write {write.number} ({write}), {mode.value} {other or ''}: {found[0]:.200}"
    return None


def planted(fault: Fault) -> Iterator[str | None]:
    """The same, in a fork."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            found = json.dumps(shows_at(fault))
            os.write(write, found.encode())
            code = 0
        except BaseException:  # nothing may go back to the loop over all faults
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        told = answers.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit(f"{fault.name}: nothing was told")
    yield json.loads(told)


def main(names: list[str]) -> None:
    for fault in FAULTS:
        if not names or fault.name in names:
            (found,) = planted(fault)
            sys.stdout.write(json.dumps([fault.name, found]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
