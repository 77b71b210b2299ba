"""How far the maps of a run are, as bars on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.cli.output import clean
from durable_core.cli.render import duration
from durable_core.engine.batch_progress import live

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from durable_core.engine.batch_progress import MapProgress

_MOST_BARS: Final = 5
_NAME_CHARS: Final = 24
_ONE_LINE: Final = 110  # columns from which bar and numbers stand side by side


class MapBars:
    """A bar for each map of a run that is running in this process; looked up anew at each drawing.

    Args:
        run_id: Of the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich draws."""
        from rich.table import Table
        from rich.text import Text

        # `list` copies at once: the run's thread adds and removes maps meanwhile.
        running = [progress for progress in list(live.values()) if progress.run_id == self._run_id]
        for progress in running[:_MOST_BARS]:
            numbers = Text.assemble(*_numbers(progress))
            numbers.no_wrap, numbers.overflow = True, "ellipsis"
            grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
            grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_NAME_CHARS)
            grid.add_column(ratio=1)
            cells: list[RenderableType] = [Text(clean(progress.step_id)), _bar(progress)]
            if options.max_width >= _ONE_LINE:
                grid.add_row(*cells, numbers)
                yield grid
            else:
                grid.add_row(*cells)
                yield grid
                yield numbers
        if len(running) > _MOST_BARS:
            yield Text(f"and {len(running) - _MOST_BARS} more maps")


def _bar(progress: MapProgress) -> RenderableType:
    from rich.progress_bar import ProgressBar

    if progress.total is None:
        return ""
    return ProgressBar(total=max(progress.total, 1), completed=progress.done)


def _numbers(progress: MapProgress) -> list[str | tuple[str, str]]:
    """Texts, or texts and styles; those first that a narrow terminal mustn't cut off."""
    of = f"/{progress.total:,}" if progress.total is not None else " done"
    parts: list[str | tuple[str, str]] = [f"{progress.done:,}{of}"]
    if progress.failed:
        parts += [", ", (f"{progress.failed:,} failed", "red")]
    rate, left_s = progress.rate, progress.left_s
    if left_s is not None:
        parts.append(f", {_whole_seconds(left_s)} left")
    parts.append(f", {rate:,.0f}/s" if rate >= 100 else f", {rate:.1f}/s")
    parts.append(f", {progress.in_flight:,} in flight")
    return parts


def _whole_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(round(seconds) * 1000)
