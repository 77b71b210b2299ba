"""Our side of the peers: their environments, and processes that are asked."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]
HERE: Final = Path(__file__).resolve().parent
PROGRAMS: Final = {
    "dbos": "dbos_peer.py",
    "langgraph": "langgraph_sqlite_peer.py",
    "aws-durable": "aws_durable_peer.py",
    "powertools": "powertools_peer.py",
}


def pinned() -> dict[str, list[str]]:
    """What is installed for each peer."""
    lines = (HERE / "requirements.txt").read_text("utf-8").splitlines()
    named = (line.split(":", 1) for line in lines if line and not line.startswith("#"))
    return {name: packages.split() for name, packages in named}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return peer_python(ROOT / f".venv-peer-{name}", *pinned()[name])


def peer_python(folder: Path, *packages: str) -> Path:
    """The interpreter of an environment with a peer in it; made when it isn't there or has other packages."""
    python, made, wanted = folder / "bin" / "python", folder / "made", " ".join(packages)
    if not made.exists() or made.read_text("utf-8") != wanted:
        print(f"Making {folder.name} with {wanted} ...", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
        subprocess.run(command, check=True, stdout=2)  # what pip has to say is no figure
        made.write_text(wanted, "utf-8")
    return python


class Peer:
    """A peer in a process of its own.

    Args:
        name: Of the peer; ours runs in this environment.

    Attributes:
        told: Package, version and durability.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        python = Path(sys.executable) if name == "ours" else python_of(name)
        self._process = subprocess.Popen(
            [python, HERE / PROGRAMS.get(name, "ours_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.told = self._answer()
        except RuntimeError:
            self.close()
            raise

    def send(self, verb: str, **request: object) -> None:
        """Asks, without waiting for the answer."""
        if self._process.stdin is None:
            raise RuntimeError("the peer has no input")
        self._process.stdin.write(json.dumps({"verb": verb, **request}) + "\n")
        self._process.stdin.flush()

    def ask(self, verb: str, **request: object) -> dict[str, Any]:
        """Asks, and waits for the answer."""
        self.send(verb, **request)
        return self._answer()

    def answer(self) -> dict[str, Any]:
        """The answer to what was sent."""
        return self._answer()

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            said = self._process.stderr.read() if self._process.stderr is not None else ""
            raise RuntimeError(f"the peer {self.name} ended: {said[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
