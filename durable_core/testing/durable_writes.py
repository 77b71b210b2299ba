"""Every durable write of a process, told before and after it is made: where a process can be killed.

A store that is watched is the store itself, behind a journal, a blob store and a checkpoint store that tell a
`Watch` of each write. Reads aren't told of: a process that dies at one has written the same as one that died
after the write before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from typing_extensions import override

from durable_core.blobs.base import RUNS, SESSIONS, BlobStore
from durable_core.checkpoints.base import CheckpointStore
from durable_core.journal.base import Renewer
from durable_core.journal.chunks import ChunkLease
from durable_core.records import Chunk, Event, Segment, StepRecord
from durable_core.store import Store
from durable_core.testing.forwarding_journal import ForwardingJournal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from durable_core.blobs.base import Owners
    from durable_core.checkpoints.base import CheckpointRecord, Place
    from durable_core.journal.base import Holding, Journal, Lease
    from durable_core.records import Reply, RunHeader

P = ParamSpec("P")
T = TypeVar("T")

JOURNAL_WRITES: Final = frozenset(
    {
        "create", "acquire", "leave", "cancel", "wake", "begin", "commit", "put", "append", "send", "take",
        "claim", "leave_chunk", "delete", "bury", "expire", "purge", "replace_damaged",
    }
)  # fmt: skip
"""The verbs of a journal that write, beside `renew` and `renew chunk`."""


class Write(NamedTuple):
    """One durable write.

    Attributes:
        number: Its place among those of its process, from 1.
        verb: Of the store: `begin`, `commit`, `renew`; `put blob`, `delete blob`; `append checkpoint`, ….
        what: The step, map or event that it is about; empty for a header.
        size_bytes: Of a blob.
    """

    number: int
    verb: str
    what: str = ""
    size_bytes: int = 0

    @property
    def blocks(self) -> bool:
        """Whether it is made by plain code: a checkpoint's, which nobody repeats."""
        return self.verb.endswith(("checkpoint", "checkpoints")) or self.what == SESSIONS

    def __str__(self) -> str:
        return f"{self.verb} {self.what}".rstrip()


class Watch:
    """Is told of every write of one process, and may do something about it.

    What it raises before a write keeps the write from being made; what it raises afterwards takes the place
    of its reply.

    Attributes:
        writes: What it was told of, in order.
    """

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def told(self, verb: str, what: str = "", size_bytes: int = 0) -> Write:
        """Counts a write that is about to be made."""
        write = Write(len(self.writes) + 1, verb, what, size_bytes)
        self.writes.append(write)
        return write

    def before(self, write: Write) -> None:
        """A write is about to be made."""

    async def meanwhile(self, write: Write) -> None:
        """The same, for who lets others do something meanwhile; not for a checkpoint store, which blocks."""

    def hold(self, write: Write) -> None:
        """The same for a renewal, which blocks a thread of its own."""

    def after(self, write: Write) -> None:
        """A write was made."""

    def asked(self) -> None:
        """The store is asked anything at all, reads too."""

    def renews(self) -> None:
        """A lease is about to be renewed, from another thread."""
        self.asked()

    async def made(self, write: Write, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Makes a write, with whatever is about it."""
        self.asked()
        self.before(write)
        await self.meanwhile(write)
        reply = await call()
        self.after(write)
        return reply

    def made_at_once(self, write: Write, call: Callable[[], T]) -> T:
        """The same, for one that blocks."""
        self.asked()
        self.before(write)
        self.hold(write)
        reply = call()
        self.after(write)
        return reply


def watched(store: Store, watch: Watch) -> Store:
    """A store whose writes a watch is told of."""
    checkpoints = store.checkpoints
    return Store(
        store.url,
        WatchedJournal(store.journal, watch),
        WatchedBlobs(store.blobs, watch),
        store.inline_max_bytes,
        WatchedCheckpoints(checkpoints, watch) if checkpoints is not None else None,
    )


class WatchedJournal(ForwardingJournal):
    """A journal whose writes a watch is told of.

    Attributes:
        watch: The same.
    """

    def __init__(self, inner: Journal, watch: Watch) -> None:
        super().__init__(inner)
        self.watch = watch

    @override
    async def ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
        if call.__name__ not in JOURNAL_WRITES:
            self.watch.asked()
            return await super().ask(call, *args, **options)
        write = self.watch.told(call.__name__, _about(*args))
        return await self.watch.made(write, lambda: super(WatchedJournal, self).ask(call, *args, **options))

    @override
    def open_renewer(self) -> Renewer:
        return _WatchedRenewer(self.inner.open_renewer(), self.watch)


class _WatchedRenewer(Renewer):
    def __init__(self, inner: Renewer, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    @override
    def renew(self, lease: Lease, lease_ms: int) -> Reply[RunHeader]:
        self._watch.renews()
        write = self._watch.told("renew")
        return self._watch.made_at_once(write, lambda: self._inner.renew(lease, lease_ms))

    @override
    def renew_chunk(self, lease: ChunkLease, lease_ms: int) -> Reply[Chunk]:
        self._watch.renews()
        write = self._watch.told("renew chunk", _about(lease))
        return self._watch.made_at_once(write, lambda: self._inner.renew_chunk(lease, lease_ms))

    @override
    def close(self) -> None:
        self._inner.close()


class WatchedBlobs(BlobStore):
    """A blob store whose writes a watch is told of."""

    def __init__(self, inner: BlobStore, watch: Watch) -> None:
        self.inner = inner
        self._watch = watch

    @override
    async def put(self, ref: str, data: bytes) -> None:
        of = SESSIONS if ref.startswith(SESSIONS) else ""
        write = self._watch.told("put blob", of, size_bytes=len(data))
        await self._watch.made(write, lambda: _none(self.inner.put(ref, data)))

    @override
    async def delete(self, ref: str) -> None:
        write = self._watch.told("delete blob", SESSIONS if ref.startswith(SESSIONS) else "")
        await self._watch.made(write, lambda: _none(self.inner.delete(ref)))

    @override
    async def get(self, ref: str) -> bytes:
        self._watch.asked()
        return await self.inner.get(ref)

    @override
    def read(self, ref: str) -> bytes:
        self._watch.asked()
        return self.inner.read(ref)

    @override
    async def refs(self, run_id: str, *, older_than_s: float = 0, of: Owners = RUNS) -> AsyncIterator[str]:
        self._watch.asked()
        async for ref in self.inner.refs(run_id, older_than_s=older_than_s, of=of):
            yield ref

    @override
    async def runs(self) -> AsyncIterator[str]:
        self._watch.asked()
        async for run_id in self.inner.runs():
            yield run_id

    @override
    async def close(self) -> None:
        await self.inner.close()


def _read(
    verb: Callable[Concatenate[CheckpointStore, P], T],
) -> Callable[Concatenate[WatchedCheckpoints, P], T]:
    """A verb that writes nothing: asked of the inner store as it is."""

    def asked(self: WatchedCheckpoints, /, *args: P.args, **options: P.kwargs) -> T:
        self._watch.asked()
        found: T = getattr(self.inner, verb.__name__)(*args, **options)
        return found

    return asked


class WatchedCheckpoints(CheckpointStore):
    """A checkpoint store whose writes a watch is told of."""

    def __init__(self, inner: CheckpointStore, watch: Watch) -> None:
        self.inner = inner
        self.inline_max_bytes = inner.inline_max_bytes
        self._watch = watch

    @override
    def append(self, record: CheckpointRecord, lease: Holding | None = None) -> int:
        return self._made("append checkpoint", record.step_id, lambda: self.inner.append(record, lease))

    @override
    def remove(self, places: Sequence[Place]) -> int:
        return self._made("remove checkpoints", "", lambda: self.inner.remove(places))

    latest = _read(CheckpointStore.latest)
    of_step = _read(CheckpointStore.of_step)
    at = _read(CheckpointStore.at)
    page = _read(CheckpointStore.page)
    prunable = _read(CheckpointStore.prunable)
    places = _read(CheckpointStore.places)
    stats = _read(CheckpointStore.stats)
    sessions = _read(CheckpointStore.sessions)

    @override
    def open(self, *, create: bool = True) -> None:
        self.inner.open(create=create)

    @override
    def close(self) -> None:
        self.inner.close()

    def _made(self, verb: str, what: str, call: Callable[[], T]) -> T:
        return self._watch.made_at_once(self._watch.told(verb, what), call)


def _about(*args: object) -> str:
    """What a journal's verb is about, by its first argument."""
    about = args[0] if args else None
    if isinstance(about, StepRecord):
        return about.step_id
    if isinstance(about, Segment):
        return f"{about.step_id}!{about.seq}"
    if isinstance(about, Chunk | ChunkLease):
        return f"{about.step_id}!{about.chunk}"
    return about.name if isinstance(about, Event) else ""


async def _none(call: Coroutine[Any, Any, None]) -> None:
    await call
