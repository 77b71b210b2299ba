"""All benchmarks, one after the other, into one Markdown table and one JSON file: what `run.sh` starts."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench import readme
from scripts.bench.report import _digits

HERE: Final = Path(__file__).resolve().parent
MOST_S: Final = 1800
"""What takes longer is ended, and counts as failed: all together then end, too."""


class Bench(NamedTuple):
    """One of them.

    Attributes:
        full, quick: What else it is given at that scale.
        speaks_json: Whether it can; else its text is kept as it is.
    """

    title: str
    file: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    speaks_json: bool = True


ALL: Final = (
    Bench("Steps on SQLite", "steps.py"),
    Bench("Beside peers, in turn", "against_peers.py"),
    Bench("Maps on SQLite, 10^3 to 10^6 items", "map.py", full=("--full",)),
    Bench("One worker", "workers.py"),
    Bench("Listings", "listing.py", quick=("--runs", "1000")),
    Bench("Verifying on SQLite", "verify.py", quick=("--steps", "1000")),
    Bench("Checkpoints of agents", "checkpoints.py"),
    Bench(
        "Checkpoints of agents on DynamoDB, beside LangGraph",
        "checkpoint_units.py",
        quick=(),
        speaks_json=False,
    ),
    Bench("Steps on DynamoDB and S3", "dynamodb.py", quick=()),
)


def found_by(bench: Bench, *, quick: bool) -> Any:
    """Runs one; gives what it has found."""
    command = [sys.executable, str(HERE / bench.file), *(bench.quick if quick else bench.full)]
    command += ["--json"] if bench.speaks_json else []
    say(f"{bench.title}: {' '.join(command[1:])}")
    began = time.monotonic()
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=MOST_S)
    except subprocess.TimeoutExpired:
        say(f"  ended after {MOST_S} s")
        return {"failed": f"it took longer than {MOST_S} s"}
    say(f"  {time.monotonic() - began:.0f} s")
    if done.returncode:
        return {"failed": done.returncode}
    return json.loads(done.stdout) if bench.speaks_json else {"text": done.stdout}


def say(line: str) -> None:
    """Tells how far it is."""
    print(line, file=sys.stderr, flush=True)


def as_markdown(found: dict[str, Any]) -> str:
    """Every figure in one document."""
    parts = ["# Benchmarks", ""]
    for title, one in found.items():
        parts += [f"## {title}", ""]
        if isinstance(one, dict) and "figures" in one:
            parts += [f"- {name}: {value}" for name, value in one["machine"].items()]
            parts += ["", "| | median | least | most | n | target | |", "|---|---|---|---|---|---|---|"]
            parts += [_row(figure) for figure in one["figures"]]
        else:
            text = one["text"].rstrip() if "text" in one else json.dumps(one, indent=2)
            parts += ["```", text, "```"]
        parts.append("")
    return "\n".join(parts)


def _row(figure: dict[str, Any]) -> str:
    value, unit = figure["value"], figure["unit"]
    numbers = " | ".join(f"{_digits(value[name])} {unit}".strip() for name in ("median", "low", "high"))
    sign = ">=" if figure["better"] == "more" else "<="
    target = f"{sign} {figure['target']:g}" if figure["target"] is not None else ""
    return f"| {figure['name']} | {numbers} | {value['readings']} | {target} | {figure['verdict']} |"


def main(arguments: list[str] | None = None) -> int:
    """Runs them and writes the files."""
    parser = argparse.ArgumentParser(description="All benchmarks.")
    parser.add_argument("--quick", action="store_true", help="a small scale: minutes")
    parser.add_argument("--only", action="append", metavar="FILE", help="only this one; may be repeated")
    parser.add_argument(
        "--out", type=Path, default=HERE.parents[1] / "build" / "bench", help="where to write"
    )
    parser.add_argument("--readme", action="store_true", help="put the table into README.md, too")
    options = parser.parse_args(arguments)
    if options.readme and options.only:
        parser.error("--readme needs the figures of all benchmarks: leave out --only")
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    found = {
        bench.title: found_by(bench, quick=options.quick)
        for bench in ALL
        if not options.only or bench.file.removesuffix(".py") in options.only
    }
    (options.out / "bench.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    (options.out / "bench.md").write_text(as_markdown(found), "utf-8")
    failed = any(isinstance(one, dict) and "failed" in one for one in found.values())
    if options.readme and not failed:
        readme.write(found, readme.ROOT / "README.md")
    say(f"All in {(time.monotonic() - began) / 60:.1f} minutes")
    print(f"{options.out / 'bench.md'} and {options.out / 'bench.json'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
