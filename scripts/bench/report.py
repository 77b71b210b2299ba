"""How the benchmarks tell what they found: the machine, each figure with its spread, the target beside it."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

DURABILITY: Final = (
    "WAL, wal_autocheckpoint 500; synchronous FULL for outcomes, NORMAL for STARTED: one fsync a step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Several readings of one thing."""

    median: float
    low: float
    high: float
    readings: int


def spread(readings: list[float]) -> Spread:
    """Median, least and most of some readings."""
    return Spread(
        median=statistics.median(readings), low=min(readings), high=max(readings), readings=len(readings)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure.

    Attributes:
        name: What was measured.
        unit: Of the readings; `x` for ratios.
        target: What it should come to, if there is a target.
        better: Whether more or less of it is better: on which side of the target it passes.
    """

    name: str
    unit: str
    value: Spread
    target: float | None = None
    better: Literal["more", "less"] = "less"

    @property
    def verdict(self) -> str:
        """`pass` or `miss`, by the median; empty without a target."""
        if self.target is None:
            return ""
        met = self.value.median >= self.target if self.better == "more" else self.value.median <= self.target
        return "pass" if met else "miss"


def machine(folder: Path) -> dict[str, str]:
    """What the figures depend on: machine, versions, durability, date."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{system}, {os.cpu_count()} x {_processor()}",
        "load": " ".join(f"{part:.2f}" for part in os.getloadavg()),
        "fdatasync_us": f"{fdatasync_us(folder):.0f}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "durable_core": _installed(),
        "durability": DURABILITY,
    }


def fdatasync_us(folder: Path, times: int = 50) -> float:
    """The median time to sync 4 KiB appended to a file, in microseconds: 1 or 2 mean nothing is synced."""
    path = folder / "fdatasync-probe"
    sync = getattr(os, "fdatasync", os.fsync)
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(bytes(4096))
            began = time.perf_counter()
            sync(file.fileno())
            took.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(took) * 1e6


def peak_rss_mib() -> float:
    """The most memory this process has had so far; 0 where the system doesn't tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def show(about: dict[str, str], figures: list[Figure], *, as_json: bool) -> None:
    """Prints what was found."""
    if as_json:
        found = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
        print(json.dumps({"machine": about, "figures": found}, indent=2))
        return
    width = max(len(name) for name in about)
    for name, value in about.items():
        print(f"{name:<{width}}  {value}")
    print()
    width = max(len(figure.name) for figure in figures)
    print(f"{'':<{width}}  {'median':>9}  {'least':>9}  {'most':>9}        n  target")
    for figure in figures:
        print(f"{figure.name:<{width}}  {_line(figure)}".rstrip())


def _line(figure: Figure) -> str:
    value = figure.value
    numbers = "  ".join(f"{_digits(number):>9}" for number in (value.median, value.low, value.high))
    line = f"{numbers} {figure.unit:<5} {value.readings:>2}"
    if figure.target is None:
        return line
    sign = ">=" if figure.better == "more" else "<="
    return f"{line}  {sign} {figure.target:g} {figure.verdict}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _installed() -> str:
    try:
        return version("durable-core")
    except PackageNotFoundError:  # run from a checkout that isn't installed
        return "checkout"


def _processor() -> str:
    known = Path("/proc/cpuinfo")
    if known.exists():
        for line in known.read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown processor"
