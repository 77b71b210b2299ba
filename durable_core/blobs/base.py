"""The contract of a blob store: what holds outputs and states that are too large for a record.

A blob is named by its run, the attempt that wrote it and the hash of its bytes, so that no two writers ever
share one: it is put first, then the record points to it; it is deleted only after its pointer is gone. States
of agents are named in the same way, by their session and checkpoint.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

from durable_core.errors import CorruptRecord, InvalidId, MissingBlob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_BLOB_BYTES: Final = 256 * 1024 * 1024 + 65536
"""Most stored bytes: the envelope's cap on raw bytes, and what compression may add."""

_ID = r"[A-Za-z0-9_:@+=-][A-Za-z0-9._:@+=-]{0,127}"
_RUN_ID = re.compile(_ID)
_REF = re.compile(rf"(?:runs|sessions)/({_ID})/({_ID})-([0-9a-f]{{64}})")
_HASH_CHARS: Final = 64

Owners = Literal["runs", "sessions"]
RUNS: Final = "runs"
SESSIONS: Final = "sessions"


class BlobStore(ABC):
    """Where blobs are. Every store passes `durable_core.testing.blob_contract`.

    All methods may be called from several tasks at once. A store that can't be reached, or is full, raises
    `JournalUnavailable`; one that doesn't permit it raises `StoreMisconfigured`. Both name place and remedy.
    """

    @abstractmethod
    async def put(self, ref: str, data: bytes) -> None:
        """Store a blob; once this returns, it survives the loss of power.

        The same bytes under the same ref again are a success: the reply to the first try may have been lost.

        Raises:
            InvalidId: This is no ref of a blob.
            CorruptRecord: The ref holds other bytes, which stay, or its hash is not that of `data`.
        """

    @abstractmethod
    async def get(self, ref: str) -> bytes:
        """The bytes of a blob, checked against the hash in its ref.

        Raises:
            InvalidId: This is no ref of a blob.
            MissingBlob: There is no such blob.
            CorruptRecord: Its bytes have changed, or are more than `MAX_BLOB_BYTES`, which are not read.
        """

    @abstractmethod
    def read(self, ref: str) -> bytes:
        """The same as `get`, blocking: for plain code in any thread.

        Raises:
            InvalidId, MissingBlob, CorruptRecord: As `get`.
        """

    @abstractmethod
    async def delete(self, ref: str) -> None:
        """Remove a blob; one that isn't there is fine.

        Raises:
            InvalidId: This is no ref of a blob.
        """

    @abstractmethod
    def refs(self, run_id: str, *, older_than_s: float = 0, of: Owners = RUNS) -> AsyncIterator[str]:
        """The refs of a run's blobs, in no particular order; not those of runs with the same prefix.

        Args:
            run_id: Of the run, or of the session.
            older_than_s: Only blobs stored so long ago: a younger one may not have its pointer yet.
            of: Whose it is the id of.

        Raises:
            InvalidId: This is no id of a run.
        """

    @abstractmethod
    def runs(self) -> AsyncIterator[str]:
        """The ids of the runs that have blobs, each once, in no particular order; no sessions."""

    async def close(self) -> None:
        """Give back what the store holds open. Nothing may be called afterwards; closing twice is fine."""
        return


def blob_ref(run_id: str, attempt_id: str, stored: bytes, of: Owners = RUNS) -> str:
    """The name of a blob: `runs/{run_id}/{attempt_id}-{sha256 of the stored bytes}`; `sessions/…` of states.

    Raises:
        InvalidId: One of the ids has characters that it mustn't have.
    """
    ref = f"{of}/{run_id}/{attempt_id}-{sha256(stored).hexdigest()}"
    check_ref(ref)
    return ref


def check_ref(ref: str) -> None:
    """Refuse what is no ref of a blob, above all what would lead out of the store.

    Raises:
        InvalidId: It isn't one.
    """
    if not is_ref(ref):
        raise InvalidId(
            f"{ref!r:.200} is no name of a blob", remedy="Names are made by blob_ref: runs/RUN/ATTEMPT-SHA256"
        )


def is_ref(name: str) -> bool:
    """Whether it is a ref of a blob: not a stray file in its folder."""
    return _REF.fullmatch(name) is not None


def attempt_of(ref: str) -> str:
    """The id of the attempt that wrote a blob.

    Raises:
        InvalidId: This is no ref of a blob.
    """
    check_ref(ref)
    return ref.rpartition("/")[2][: -(_HASH_CHARS + 1)]


def is_run_id(name: str) -> bool:
    """Whether it is the id of a run: not a stray folder."""
    return _RUN_ID.fullmatch(name) is not None


def check_run_id(run_id: str) -> None:
    """Refuse what is no id of a run.

    Raises:
        InvalidId: It isn't one.
    """
    if not is_run_id(run_id):
        raise InvalidId(
            f"{run_id!r:.200} is no id of a run",
            remedy="Ids are 1-128 of [A-Za-z0-9._:@+=-], without a leading dot",
        )


def check_bytes(ref: str, data: bytes) -> None:
    """Refuse bytes that are not those the ref was made for.

    Raises:
        CorruptRecord: They aren't.
    """
    if sha256(data).hexdigest() != ref[-64:]:
        raise CorruptRecord(
            f"the bytes of the blob {ref} don't have the hash in its name",
            remedy="Restore it from a backup, or run the step anew in a fork of the run",
        )


def too_large(ref: str, size_bytes: int) -> CorruptRecord:
    """The error for a blob larger than any that is written."""
    return CorruptRecord(
        f"the blob {ref} has {size_bytes} bytes, more than the {MAX_BLOB_BYTES} that are ever written"
    )


def missing(ref: str, where: str) -> MissingBlob:
    """The error for a blob that a record points to and that isn't there.

    Args:
        ref: Its name.
        where: The store, as a person can find it.
    """
    return MissingBlob(
        f"the blob {ref} is not in {where}",
        remedy="Put it back from a backup, or run the step anew in a fork of the run",
    )
