"""Finding what a command is about: a store that is there, and ids from their beginnings."""

from __future__ import annotations

import asyncio
import difflib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from durable_core.errors import (
    CheckpointNotFound,
    CorruptRecord,
    DurableError,
    InvalidId,
    RunNotFound,
    StepNotFound,
    StoreNotFound,
    UsageError,
)
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter
from durable_core.records import TOMBSTONE
from durable_core.store_urls import store_url
from durable_core.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from durable_core.checkpoints.base import CheckpointStore
    from durable_core.journal.base import Journal
    from durable_core.store import Store

_CANDIDATES: Final = 10
_NEAREST: Final = 3
_LOOKED_THROUGH: Final = 1000
_LOOK_S: Final = 1.0

P = ParamSpec("P")
T = TypeVar("T")


def named_store(url: str | None, *, read_only: bool = False) -> Store:
    """The store that the option, the environment or the default names; nothing is opened yet.

    Args:
        url: As given.
        read_only: Whether it is only looked at.

    Raises:
        UsageError: It names none.
    """
    return open_store(store_url(url, None, None), read_only=read_only)


async def complete_run_id(journal: Journal, given: str, url: str) -> str:
    """The id of the one run that is named so, or begins so.

    Args:
        journal: Opened.
        given: The id, or its beginning.
        url: Of the store, for the message.

    Raises:
        UsageError: Several begin so.
        RunNotFound: None does.
    """
    try:
        check_id(given, "run id")
    except InvalidId as error:
        if not given.strip():
            raise
        raise await _no_run(journal, given, url) from error
    try:
        exact = await journal.header(given)
    except CorruptRecord:  # it is there; whoever needs it whole is told
        return given
    if exact is not None and exact.status != TOMBSTONE:
        return given
    found = await journal.runs(RunFilter(prefix=given, limit=_CANDIDATES + 1))
    if not found:
        raise await _no_run(journal, given, url)
    if len(found) > 1:
        raise _ambiguous("runs", given, [header.run_id for header in found])
    return found[0].run_id


def complete_step_id(known: Sequence[str], given: str, run_id: str) -> str:
    """The id of the one step that is named so, or begins so.

    Raises:
        UsageError: Several begin so.
        StepNotFound: None does.
    """
    if given in known:
        return given
    found = [step_id for step_id in known if given and step_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous("steps", given, found)
    raise StepNotFound(
        "the run has no such step, nor one that begins so",
        run_id=run_id,
        step_id=given,
        remedy=_near(given, known) or "See its steps with `durable show`",
    )


def complete_session_id(kept: CheckpointStore, given: str, url: str) -> str:
    """The one session of which something is kept that is named so, or begins so.

    Args:
        kept: Opened.
        given: The id, or its beginning.
        url: Of the store, for the message.

    Raises:
        UsageError: Several begin so.
        CheckpointNotFound: None does.
    """
    if given and kept.stats(given).checkpoints:
        return given
    found = kept.sessions(after=given, limit=_CANDIDATES + 1) if given else ()
    found = [name for name in found if name.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous("sessions", given, found)
    near = _near(given, kept.sessions(limit=_LOOKED_THROUGH))
    raise CheckpointNotFound(
        f"there is no checkpoint of session {given!r:.150} in {url}, nor of one that begins so",
        remedy=near
        or "See which sessions there are with `durable checkpoint list`, and check the store's URL",
    )


def complete_checkpoint_step(kept: CheckpointStore, session_id: str, given: str) -> str:
    """The one step of a session's checkpoints that is named so, or begins so.

    Raises:
        UsageError: Several begin so.
        CheckpointNotFound: None does.
    """
    known: dict[str, None] = {}
    before = None
    while page := kept.page(session_id, before=before, limit=_LOOKED_THROUGH):
        known.update((str(record.step_id), None) for record in page)
        before = page[-1].seq
    found = [given] if given in known else [name for name in known if given and name.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous("steps", given, found)
    raise CheckpointNotFound(
        f"session {session_id!r} has no checkpoint of that step, nor of one that begins so",
        step_id=given,
        remedy=_near(given, known) or f"See its steps with `durable checkpoint list {session_id}`",
    )


def is_unrecorded(store: Store, run_id: str) -> bool:
    """Whether a run certainly isn't in a store that is closed by now; says no when the store doesn't answer.

    It is asked on the way out of an interrupted command, so in a thread that nothing waits for.
    """
    found: list[bool] = []

    async def look() -> None:
        asyncio.get_running_loop().set_default_executor(_InTheLoopsThread())
        try:
            await store.journal.open(create=False)
            header = await store.journal.header(run_id)
            found.append(header is None or header.status == TOMBSTONE)
        except StoreNotFound:
            found.append(True)
        except DurableError:  # it is told what would be told without a look
            found.append(False)
        finally:
            await store.journal.close()

    thread = threading.Thread(target=lambda: asyncio.run(look()), name="durable-look", daemon=True)
    try:
        thread.start()
        thread.join(_LOOK_S)
    except KeyboardInterrupt:  # again
        return False
    return found == [True]


class _InTheLoopsThread(ThreadPoolExecutor):
    """Starts no thread: Python would wait for it at its end, for as long as the store is locked."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done = Future[T]()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # handed to whoever awaits it, as every executor does
            done.set_exception(error)
        return done


async def _no_run(journal: Journal, given: str, url: str) -> RunNotFound:
    try:
        known = [header.run_id for header in await journal.runs(RunFilter(limit=_LOOKED_THROUGH))]
    except DurableError:  # a guess at what was meant isn't worth another error
        known = []
    return RunNotFound(
        f"there is no such run in {url}, nor one that begins so",
        run_id=given,
        remedy=_near(given, known) or "See which there are with `durable list`, and check the store's URL",
    )


def _near(given: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(given, list(known), n=_NEAREST, cutoff=0.5)
    return f"Nearest: {', '.join(near)}" if near else None


def _ambiguous(what: str, given: str, found: Sequence[str]) -> UsageError:
    shown = ", ".join(found[:_CANDIDATES]) + (", …" if len(found) > _CANDIDATES else "")
    return UsageError(f"several {what} begin with {given!r}: {shown}", remedy="Write more of the id")
