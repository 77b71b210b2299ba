"""Real processes that are killed at one of their durable writes, and others that go on from there.

The process that lets them live forks each of them, so it must have no threads of its own. SIGKILL ends a
process at once, with nothing unwound. A torn write is one in the middle of which the kernel itself ends the
process, at a byte that is chosen: it may not write past that byte of a file (RLIMIT_FSIZE).
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from durable_core.clock import SystemClock
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.errors import DurableError, JournalUnavailable
from durable_core.stores import open_store
from durable_core.testing.crash_promises import Body, Life, broken, state_of
from durable_core.testing.crash_trials import Act, told
from durable_core.testing.durable_writes import Watch, Write, watched
from durable_core.testing.simulated_process import Mode, noting_bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.store import Store

T = TypeVar("T")

_LIMIT_S: Final = 60.0
_AHEAD_S: Final = 60
_INTO_A_FRAME: Final = 24 + 100  # a frame of a SQLite log has a header of 24 bytes, and then a page


class AdvancedClock(SystemClock):
    """The machine's clocks, as they will be: an act may let time pass, as it does with a fake clock."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    @override
    def boot_ms(self) -> int:
        return super().boot_ms() + self._ahead_ms

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self._ahead_ms += round(seconds * 1000)


class ProcessTrials:
    """Trials of one act by real processes.

    Args:
        act: What is done.
        fresh: Gives the URL of a store that is empty.

    Attributes:
        unharmed: What becomes of it when nobody disturbs it.
        writes: The durable writes that it makes then.
    """

    def __init__(self, act: Act, fresh: Callable[[], str]) -> None:
        self.act = act
        self._fresh = fresh
        with tempfile.TemporaryDirectory(prefix="durable-crash-") as folder:
            trial = _Trial(act, fresh(), Path(folder))
            self._in_files = trial.url.startswith("sqlite:")
            trial.prepare()
            found: tuple[Life, list[Write]] = _finished(trial.start(trial.unharmed))
        self.unharmed, self.writes = found

    def points(self) -> list[tuple[Write, Mode]]:
        """All crash points: torn are only writes to files."""
        return [(write, mode) for write in self.writes for mode in Mode if mode is not Mode.TORN] + [
            (write, Mode.TORN) for write in self.writes if self._in_files
        ]

    def broken(self, number: int, mode: Mode) -> list[str]:
        """The promises that a crash point breaks."""
        with tempfile.TemporaryDirectory(prefix="durable-crash-") as folder:
            trial = _Trial(self.act, self._fresh(), Path(folder))
            trial.prepare()
            first = trial.start(lambda: trial.first(mode, number))
            if mode is Mode.OVERTAKEN:
                return trial.overtaken(first, self.unharmed)
            code = _end_of(first.pid)
            deaths = 1 if code < 0 else 0
            found: list[str] = _finished(trial.start(lambda: trial.second(self.unharmed, deaths, mode)))
            return found


class _Child:
    """A forked process, and where it leaves what it came to."""

    def __init__(self, pid: int, left: Path) -> None:
        self.pid = pid
        self.left = left


class _Trial:
    """One trial: a store, and a folder for what processes tell each other."""

    def __init__(self, act: Act, url: str, folder: Path) -> None:
        self.act = act
        self.url = url
        self.folder = folder
        self._started = 0

    def start(self, lives: Callable[[], object]) -> _Child:
        """Forks a process that does something, leaves what it came to, and ends."""
        self._started += 1
        left = self.folder / f"left{self._started}"
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                left.with_suffix(".part").write_bytes(pickle.dumps(lives()))
                left.with_suffix(".part").rename(left)
                code = 0
            except SystemExit as stopped:
                code = stopped.code if isinstance(stopped.code, int) else 70
            except BaseException:  # nothing may go back to the code that forked it
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        return _Child(pid, left)

    def prepare(self) -> None:
        """Does what has to be done before the act begins."""
        if self.act.before is not None:
            _finished(self.start(self._prepared))

    # ---- In the processes ----

    def _prepared(self) -> None:
        async def live() -> None:
            assert self.act.before is not None
            async with DurableWorkflowExecutor(self.url) as executor:
                await self.act.before(executor)

        asyncio.run(live())

    def unharmed(self) -> tuple[Life, list[Write]]:
        """A life that nobody disturbs, and its writes."""
        watch = Watch()
        life = self._life(watch)
        if life.error is not None:
            raise life.error
        return life, watch.writes

    def first(self, mode: Mode, number: int) -> str | None:
        """A life that ends, or is disturbed, at a write; gives what the process was told, if it lives on."""
        return self._life(_Doomed(mode, number, self.url)).outcome

    def second(self, unharmed: Life, deaths: int, mode: Mode) -> list[str]:
        """Goes on where the first life ended, to the end; gives the promises that are broken."""
        earlier = self._bodies()
        state = asyncio.run(self._state())
        first = Life(None, earlier, state)
        after = self._life(Watch())
        after = after._replace(bodies=after.bodies[len(earlier) :])
        return broken(unharmed, first, after, deaths=deaths, takeovers=0 if mode is Mode.LOST else 1)

    def meanwhile(self) -> Life:
        """What another process does while the first one is paused."""
        life = self._life(Watch(), self.act.meanwhile or self.act.does, 0 if self.act.meanwhile else _AHEAD_S)
        return life._replace(error=None)  # whatever it was, it shows in the end

    def last(self, unharmed: Life, paused: Life, zombie: str | None) -> list[str]:
        """Looks at the end, from the top once more; gives the promises that are broken."""
        after = self._life(Watch())
        after = after._replace(bodies=after.bodies[len(paused.bodies) :])
        deaths = 0 if self.act.meanwhile is not None else 1  # whoever is overtaken counts as dead
        found = broken(unharmed, paused, after, deaths=deaths, takeovers=1, late=True)
        if zombie not in (None, unharmed.outcome):
            found.append(f"a process was told {zombie}; it is {unharmed.outcome}")
        return found

    # ---- In the process that lets them live ----

    def overtaken(self, first: _Child, unharmed: Life) -> list[str]:
        """The first process stands before a write until another has been at work."""
        stands = _stops_or_ends(first.pid)
        paused: Life = _finished(self.start(self.meanwhile))
        if stands:
            os.kill(first.pid, signal.SIGCONT)
            _end_of(first.pid)
        zombie = pickle.loads(first.left.read_bytes()) if first.left.exists() else None  # noqa: S301 - our own
        found: list[str] = _finished(self.start(lambda: self.last(unharmed, paused, zombie)))
        return found

    def _life(
        self,
        watch: Watch,
        does: Callable[[DurableWorkflowExecutor], Any] | None = None,
        ahead_s: float = 0,
    ) -> Life:
        """One life in this process. Its bodies are those of all lives so far: they are noted in a file."""
        clock = AdvancedClock()
        clock.advance(ahead_s)

        async def live() -> tuple[str | None, BaseException | None]:
            store = watched(open_store(self.url, clock), watch)
            executor = DurableWorkflowExecutor(store, clock=clock)
            try:
                return told(await (does or self.act.does)(executor)), None
            except DurableError as error:
                return None, error
            finally:
                await executor.close()

        with noting_bodies(self._note):
            outcome, error = asyncio.run(live())
        return Life(outcome, self._bodies(), asyncio.run(self._state()), error)

    async def _state(self) -> Any:
        store: Store = open_store(self.url)
        try:
            await store.journal.open()
            return await state_of(store, self.act.run_id)
        finally:
            await store.close()

    def _note(self, body: Body) -> None:
        """In one write, so that a kill leaves all of it or nothing."""
        file = os.open(self.folder / "bodies", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(body).encode() + b"\n")
        finally:
            os.close(file)

    def _bodies(self) -> list[Body]:
        noted = self.folder / "bodies"
        if not noted.exists():
            return []
        return [Body(*json.loads(line)) for line in noted.read_bytes().splitlines()]


class _Doomed(Watch):
    """Ends or disturbs its own process at one of its writes."""

    def __init__(self, mode: Mode, number: int, url: str) -> None:
        super().__init__()
        self._mode = mode
        self._number = number
        self._log = Path(f"{url.removeprefix('sqlite:///')}-wal")
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    @override
    def before(self, write: Write) -> None:
        if write.number != self._number:
            return
        match self._mode:
            case Mode.BEFORE:
                _at_once(signal.SIGKILL)
            case Mode.STOPPED:
                os.kill(os.getpid(), signal.SIGTERM)
            case Mode.OVERTAKEN:
                _at_once(signal.SIGSTOP)
            case Mode.TORN:
                torn = write.size_bytes // 2 or self._log.stat().st_size + _INTO_A_FRAME
                resource.setrlimit(resource.RLIMIT_FSIZE, (torn, resource.RLIM_INFINITY))

    @override
    def after(self, write: Write) -> None:
        if write.number != self._number:
            return
        match self._mode:
            case Mode.AFTER:
                _at_once(signal.SIGKILL)
            case Mode.LOST:
                raise JournalUnavailable("the write was made, and its reply was lost")
            case Mode.TORN:  # nothing was written past that byte after all
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _at_once(number: signal.Signals) -> None:
    """Sends a signal to this very thread: sent to the process, another could take it a moment later."""
    signal.pthread_kill(threading.get_ident(), number)


def _finished(child: _Child) -> Any:
    """What a process that nobody disturbs came to."""
    code = _end_of(child.pid)
    if code != 0:
        raise RuntimeError(f"a process that nobody disturbed ended with {code}")
    return pickle.loads(child.left.read_bytes())  # noqa: S301 - written by a fork of this process


def _end_of(pid: int) -> int:
    """Waits for the end of a process; gives its exit code, negative for a signal."""
    until = time.monotonic() + _LIMIT_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise RuntimeError(f"a process hung for {_LIMIT_S:g} s, and was killed")
        time.sleep(0.001)


def _stops_or_ends(pid: int) -> bool:
    """Waits until a process stands still or has ended; gives whether it stands."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)
