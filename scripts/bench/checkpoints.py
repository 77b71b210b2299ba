"""Checkpoints of agents on SQLite: saves a second and bytes on disk, beside LangGraph's SqliteSaver.

    python scripts/bench/checkpoints.py               a minute; makes .venv-langgraph for the peer, once
    python scripts/bench/checkpoints.py --quick       a tenth of it
    python scripts/bench/checkpoints.py --no-peer     ours only

Both save the same states, one after the other, each save synced to the disk, each round in a file of its own;
nothing is pruned. They take turns, and a ratio is taken within its pair. The peer runs in a process and an
environment of its own: its dependencies are none of ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core import CheckpointingConfig, configure_logging, get_checkpointer
from scripts.bench.floor import size_bytes as file_bytes
from scripts.bench.peers.asking import peer_python
from scripts.bench.report import Figure, machine, show, spread
from scripts.bench.states import state

ROOT: Final = Path(__file__).resolve().parents[2]
PEER: Final = "langgraph-checkpoint-sqlite==3.1.2"
DURABILITY: Final = "WAL, synchronous FULL: one fsync a save, for both"


class Scale(NamedTuple):
    """How much of everything."""

    pairs: int
    saves: dict[int, int]


FULL: Final = Scale(pairs=7, saves={1_000: 1000, 10_000: 500, 1_000_000: 20})
QUICK: Final = Scale(pairs=5, saves={1_000: 200, 10_000: 100, 1_000_000: 5})
_NAMES: Final = {1_000: "1 KB", 10_000: "10 KB", 1_000_000: "1 MB"}


class Saved(NamedTuple):
    """A round of saves: seconds, and bytes on disk a save."""

    took_s: float
    bytes_per_save: float


def ours(path: Path, size_bytes: int, saves: int) -> Saved:
    """Saves as many checkpoints into a new file; each is the state with another turn."""
    made = state(size_bytes)
    config = CheckpointingConfig(enabled=True, retention_per_session=0)
    with get_checkpointer(config, f"sqlite:///{path}") as checkpointer:
        checkpointer.kept.open()
        took_s = 0.0
        for turn in range(saves):
            made["turn"] = turn
            began = time.perf_counter()
            checkpointer.save("bench", "agent", "step", made)
            took_s += time.perf_counter() - began
        latest = checkpointer.load_latest("bench")
    if latest is None or latest.state != made or latest.seq != saves:
        raise RuntimeError("the benchmark does not measure what it claims: the last state did not come back")
    return Saved(took_s, file_bytes(path) / saves)


class Peer:
    """LangGraph's saver, in a process of its own."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, str(ROOT / "scripts" / "bench" / "langgraph_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = str(self._answer()["version"])

    def save(self, path: Path, size_bytes: int, saves: int) -> Saved:
        """The same, by the peer."""
        if self._process.stdin is None:
            raise RuntimeError("the peer has no input")
        request = {"path": str(path), "size_bytes": size_bytes, "saves": saves}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        return Saved(found["took_s"], found["file_bytes"] / saves)

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError("the peer ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(folder: Path, scale: Scale, peer: Peer | None) -> list[Figure]:
    """Each size, ours and the peer in turn."""
    figures: list[Figure] = []
    for size_bytes, saves in scale.saves.items():
        mine, theirs = list[Saved](), list[Saved]()
        for pair in range(-1, scale.pairs):  # the first warms both up, and doesn't count
            paths = folder / f"ours{size_bytes}-{pair}.db", folder / f"peer{size_bytes}-{pair}.db"
            first = peer.save(paths[1], size_bytes, saves) if peer is not None and pair % 2 else None
            one = ours(paths[0], size_bytes, saves)
            if peer is not None:
                first = first or peer.save(paths[1], size_bytes, saves)
            if pair >= 0:
                mine.append(one)
                theirs += [first] if first is not None else []
            for left in folder.glob(f"*{size_bytes}-{pair}.db*"):
                left.unlink()
        figures += _figures(_NAMES.get(size_bytes, f"{size_bytes} B"), saves, mine, theirs)
    return figures


def _figures(name: str, saves: int, mine: list[Saved], theirs: list[Saved]) -> list[Figure]:
    def rates(of: list[Saved]) -> list[float]:
        return [saves / one.took_s for one in of]

    figures = [
        Figure(name=f"{name}: ours, saves per s", unit="/s", value=spread(rates(mine))),
        Figure(
            name=f"{name}: ours, bytes per save", unit="B", value=spread([one.bytes_per_save for one in mine])
        ),
    ]
    if theirs:
        pairs = list(zip(mine, theirs, strict=True))
        figures += [
            Figure(name=f"{name}: LangGraph, saves per s", unit="/s", value=spread(rates(theirs))),
            Figure(
                name=f"{name}: LangGraph, bytes per save", unit="B",
                value=spread([one.bytes_per_save for one in theirs]),
            ),
            Figure(
                name=f"{name}: saves per s, ours to LangGraph", unit="x",
                value=spread([other.took_s / one.took_s for one, other in pairs]),
            ),
            Figure(
                name=f"{name}: bytes, ours to LangGraph", unit="x",
                value=spread([one.bytes_per_save / other.bytes_per_save for one, other in pairs]),
            ),
        ]  # fmt: skip
    return figures


def main(arguments: list[str] | None = None, scale: Scale | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Checkpoints on SQLite, beside LangGraph's saver.")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, help="where to put the files; a temporary folder if not given")
    parser.add_argument("--no-peer", action="store_true", help="without LangGraph, and without the network")
    parser.add_argument(
        "--peer-venv", type=Path, default=ROOT / ".venv-langgraph", help="the peer's environment"
    )
    options = parser.parse_args(arguments)
    scale = scale or (QUICK if options.quick else FULL)
    peer = None if options.no_peer else Peer(peer_python(options.peer_venv, PEER))
    try:
        with tempfile.TemporaryDirectory(prefix="durable-bench-", dir=options.folder) as folder:
            about = {**machine(Path(folder)), "durability": DURABILITY}
            if peer is not None:
                about["peer"] = f"langgraph-checkpoint-sqlite {peer.version}"
            show(about, measure(Path(folder), scale, peer), as_json=options.json)
    finally:
        if peer is not None:
            peer.close()


if __name__ == "__main__":
    configure_logging(level="error")  # not a line of ours above the table
    main()
