"""Writes what `run.sh` has found into the README: figures with a target, and those beside peers.

scripts/bench/run.sh --readme                                 measures, and then does it
python scripts/bench/readme.py [build/bench/bench.json]       does it with what was measured before
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.report import _digits

ROOT: Final = Path(__file__).resolve().parents[2]
BEGIN: Final = "<!-- Written by scripts/bench/readme.py from here -->"
END: Final = "<!-- to here -->"
_PEERS: Final = " peers"
_OF_ALL: Final = ("date", "machine", "load", "fdatasync_us", "python", "sqlite", "durable_core")


def section(found: dict[str, Any]) -> str:
    """The figures of a run of all benchmarks, and what they depend on, as Markdown."""
    measured = {title: one for title, one in found.items() if "figures" in one}
    if not measured:
        raise SystemExit("none of these benchmarks has figures")
    first = next(iter(measured.values()))["machine"]
    about = [f"{name} {first[name]}" for name in _OF_ALL if name in first]
    parts = ["Medians, each with its least and most, of one run:", "", ", ".join(about) + ".", ""]
    for title, one in measured.items():
        beside = _PEERS in title
        rows = [_row(figure) for figure in one["figures"] if beside or figure["target"] is not None]
        if rows:
            settings = [f"{name}: {value}" for name, value in one["machine"].items() if name not in _OF_ALL]
            parts += [f"| {title} | median | least to most | target | |", "|---|---|---|---|---|", *rows, ""]
            parts += ["; ".join(settings) + ".", ""] if settings else []
    return "\n".join(parts).rstrip()


def _row(figure: dict[str, Any]) -> str:
    value, unit = figure["value"], figure["unit"]
    median, low, high = (_digits(value[name]) for name in ("median", "low", "high"))
    sign = "≥" if figure["better"] == "more" else "≤"
    target = f"{sign} {figure['target']:g}" if figure["target"] is not None else ""
    spread = f"{low} to {high}" if low != high else ""
    return f"| {figure['name']} | {median} {unit} | {spread} | {target} | {figure['verdict']} |"


def write(found: dict[str, Any], readme: Path) -> None:
    """Puts them between the marks.

    Raises:
        SystemExit: The marks aren't there, or there are no figures.
    """
    text = readme.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{readme} lacks the lines {BEGIN!r} and {END!r}, between which the figures stand")
    readme.write_text(f"{before}{begin}\n\n{section(found)}\n\n{end}{after}", "utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Writes the README of this checkout."""
    given = sys.argv[1:] if arguments is None else arguments
    source = Path(given[0]) if given else ROOT / "build" / "bench" / "bench.json"
    write(json.loads(source.read_text("utf-8")), ROOT / "README.md")


if __name__ == "__main__":
    main()
