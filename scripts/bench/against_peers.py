"""Ours beside the floor and beside peers, in turn: steps, items of a map, imports, two drivers of one run.

    python scripts/bench/against_peers.py            some minutes; makes .venv-peer-* once, from the registry
    python scripts/bench/against_peers.py --quick    less of everything
    python scripts/bench/against_peers.py --json     for machines

Each round runs all of them one after the other, each in a file of its own and the peers in environments and
processes of their own; a ratio is taken within its round. What each one is asked for is the same: steps with
outputs of 200 bytes in sequence. Durability is as each has it by default, or stricter; it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core import configure_logging
from scripts.bench import floor, steps
from scripts.bench import map as bench_map
from scripts.bench.peers.asking import Peer, python_of
from scripts.bench.report import Figure, machine, show, spread

STORED: Final = ("dbos", "langgraph", "aws-durable")
DRIVEN: Final = ("ours", "dbos", "langgraph")
_IMPORTS: Final = {
    "nothing": ("", ""),
    "ours": ("", "durable_core"),
    "dbos": ("dbos", "dbos"),
    "langgraph": ("langgraph", "langgraph.graph, langgraph.checkpoint.sqlite"),
    "aws-durable": ("aws-durable", "aws_durable_execution_sdk_python"),
    "powertools": ("powertools", "aws_lambda_powertools.utilities.idempotency"),
}


class Scale(NamedTuple):
    """How much of everything."""

    rounds: int
    steps: int
    items: int
    imports: int
    driven: int


FULL: Final = Scale(rounds=5, steps=500, items=1000, imports=7, driven=20)
QUICK: Final = Scale(rounds=5, steps=100, items=200, imports=5, driven=10)


def measure_steps(folder: Path, scale: Scale, peers: dict[str, Peer]) -> list[Figure]:
    """Steps in sequence: ours, the floor and the peers in turn."""
    took: dict[str, list[float]] = {}
    sizes: dict[str, float] = {}
    for number in range(-1, scale.rounds):  # the first warms all up, and doesn't count
        names = ["ours", "floor", *peers]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            place = folder / f"{name}{number}"
            place.mkdir()
            took_s, size = _written(name, place / "runs.db", scale.steps, peers)
            if number >= 0:
                took.setdefault(name, []).append(took_s)
                sizes[name] = size / scale.steps
    figures = []
    for name, seconds in took.items():
        rates = spread([scale.steps / one for one in seconds])
        figures.append(Figure(name=f"steps per s, {name}", unit="/s", value=rates))
        if sizes[name]:
            value = spread([sizes[name]])
            figures.append(Figure(name=f"bytes on disk per step, {name}", unit="B", value=value))
        if name != "ours":
            ratio = spread([other / mine for mine, other in zip(took["ours"], seconds, strict=True)])
            target = 0.70 if name == "floor" else None
            figures.append(
                Figure(
                    name=f"steps per s, ours to {name}", unit="x", value=ratio, target=target, better="more"
                )
            )
    return figures


def _written(name: str, path: Path, count: int, peers: dict[str, Peer]) -> tuple[float, float]:
    if name in peers:
        found = peers[name].ask("write", path=str(path), steps=count)
        return found["took_s"], found["file_bytes"]
    writes = steps.ours_written if name == "ours" else steps.floor_written
    written = asyncio.run(writes(path, count))
    return written.took_s, written.bytes_per_step * count


def measure_items(folder: Path, scale: Scale, peer: Peer) -> list[Figure]:
    """No-op items of a map: ours and the SDK of AWS in turn."""
    mine, theirs = list[float](), list[float]()
    for number in range(-1, scale.rounds):
        ours = asyncio.run(bench_map.ours_written(folder / f"items{number}.db", scale.items))
        other = peer.ask("map", path="", items=scale.items)["took_s"]
        if number >= 0:
            mine.append(ours.took_s)
            theirs.append(other)
    ratio = spread([other / one for one, other in zip(mine, theirs, strict=True)])
    return [
        Figure(name="items per s, ours", unit="/s", value=spread([scale.items / one for one in mine])),
        Figure(
            name=f"items per s, {peer.name}", unit="/s", value=spread([scale.items / one for one in theirs])
        ),
        Figure(name=f"items per s, ours to {peer.name}", unit="x", value=ratio, better="more"),
    ]


def measure_imports(scale: Scale) -> list[Figure]:
    """A new process that imports: what a cold start pays."""
    took: dict[str, list[float]] = {}
    for number in range(-1, scale.imports):
        for name, (peer, modules) in _IMPORTS.items():
            python = python_of(peer) if peer else Path(sys.executable)
            began = time.perf_counter()
            subprocess.run([python, "-c", f"import {modules}" if modules else ""], check=True)
            if number >= 0:
                took.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    return [
        Figure(name=f"new process that imports {name}", unit="ms", value=spread(found))
        for name, found in took.items()
    ]


def two_drivers(folder: Path, scale: Scale, names: tuple[str, ...] = DRIVEN) -> list[Figure]:
    """Two processes drive one run at the same time: how many bodies run twice."""
    figures = []
    for name in names:
        place = folder / f"driven-{name}"
        place.mkdir()
        both = Peer(name), Peer(name)
        try:
            for peer in both:
                peer.send("drive", path=str(place / "runs.db"), steps=scale.driven, log=str(place / "log"))
                while not (place / "log").exists():  # the second comes when the first is at work
                    time.sleep(0.01)
            errors = [peer.answer()["error"] for peer in both]
        finally:
            for peer in both:
                peer.close()
        ran = (place / "log").read_text("utf-8").split()
        twice = sum(ran.count(index) > 1 for index in set(ran))
        told = ", ".join(filter(None, errors)) or "neither process was told"
        target = 0 if name == "ours" else None
        figures.append(
            Figure(
                name=f"bodies of {scale.driven} that ran twice under two drivers, {name} ({told})",
                unit="", value=spread([twice]), target=target,
            )
        )  # fmt: skip
    return figures


def measure_calls(scale: Scale) -> list[Figure]:
    """What Powertools asks of DynamoDB for a call that it remembers; what a step asks is in dynamodb.py."""
    from moto.server import ThreadedMotoServer

    os.environ.update(dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "bench"))
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    peer = Peer("powertools")
    try:
        host, port = server.get_host_and_port()
        found = peer.ask("calls", endpoint=f"http://{host}:{port}", calls=scale.driven)
    finally:
        peer.close()
        server.stop()
    value = spread([sum(found["requests"].values()) / scale.driven])
    told = f"powertools {peer.told['version']}"
    return [Figure(name=f"DynamoDB requests per remembered call, {told}", unit="", value=value)]


def main(arguments: list[str] | None = None, scale: Scale | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Ours beside the floor and peers.")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, help="where to put the files; a temporary folder if not given")
    options = parser.parse_args(arguments)
    scale = scale or (QUICK if options.quick else FULL)
    steps._outputs[:] = floor.outputs(scale.steps)
    peers = {name: Peer(name) for name in STORED}
    try:
        with tempfile.TemporaryDirectory(prefix="durable-bench-", dir=options.folder) as folder:
            about = machine(Path(folder))
            for peer in peers.values():
                told = peer.told
                about[peer.name] = f"{told['package']} {told['version']}; {told['durability']}"
            figures = measure_steps(Path(folder), scale, peers)
            figures += measure_items(Path(folder), scale, peers["aws-durable"])
            figures += measure_imports(scale)
            figures += measure_calls(scale)
            figures += two_drivers(Path(folder), scale)
            show(about, figures, as_json=options.json)
    finally:
        for peer in peers.values():
            peer.close()


if __name__ == "__main__":
    configure_logging(level="error")  # not a line for each of the runs, above the table
    main()
