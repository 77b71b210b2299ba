"""On a terminal: a line that says how far a run is, and a bar for each map that is running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from durable_core.cli.map_bars import MapBars
from durable_core.cli.output import clean
from durable_core.errors import DurableError
from durable_core.records import COMMITTED, FAILED, STARTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from durable_core.journal.base import Journal

_LOOK_EVERY_S: Final = 1.0
_SHARE_OF_TIME: Final = 20  # looking at a long run may cost a twentieth of the time
_SHOWN: Final = ((COMMITTED, "committed"), (STARTED, "started"), (FAILED, "failed"))


@contextlib.contextmanager
def status_line(run_id: str) -> Iterator[Callable[[str], None] | None]:
    """A line that changes in place on standard error, and the run's maps below; None where it is no terminal.

    What is written to standard error meanwhile appears above it.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield None
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
    spinner = Spinner("line", Text(clean(f"{run_id}: starting")))
    shown = Group(spinner, MapBars(run_id))
    with Live(shown, console=console, transient=True, redirect_stdout=False, refresh_per_second=4):
        yield lambda text: spinner.update(text=Text(clean(text)))


async def keep_telling(journal: Journal, run_id: str, tell: Callable[[str], None]) -> None:
    """Tells how many steps the run has, until it is cancelled. Only reads, one page in memory at a time.

    The steps inside the items of maps aren't counted: there may be millions.
    """
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        began = time.monotonic()
        counts: Counter[str] = Counter()
        try:
            async for page in journal.replay(run_id):
                counts.update(record.status for record in page)
        except DurableError:  # the run itself will meet it, and tell
            continue
        told = ", ".join(f"{counts[status]} {word}" for status, word in _SHOWN if counts[status])
        tell(f"{run_id}: {told or 'no steps yet'}")
        await asyncio.sleep((time.monotonic() - began) * _SHARE_OF_TIME)
