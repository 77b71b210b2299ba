"""Whether stored values are what was stored: those in records at once, blobs some at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.blobs.base import is_ref
from durable_core.engine.asking import ask
from durable_core.errors import CorruptRecord, MissingBlob

if TYPE_CHECKING:
    from durable_core.engine.findings import Findings
    from durable_core.engine.values import Values

_AT_ONCE: Final = 16
_BYTES_AT_ONCE: Final = 16 * 1024 * 1024


class StoredValue(NamedTuple):
    """Where and how a value is stored.

    Attributes:
        where: The step or event it is of; None of the header.
        what: What it is there: `output`, `input`, `payload`.
    """

    where: str | None
    what: str
    codec: str | None
    data: bytes | None
    ref: str | None
    size: int | None
    output_hash: str | None


class ValueCheck:
    """Checks the values of one run.

    Args:
        values: What opens them, and gets blobs.
        findings: Where damage goes.

    Attributes:
        blobs: How many were looked at.
    """

    def __init__(self, values: Values, findings: Findings) -> None:
        self._values = values
        self._findings = findings
        self._waiting: list[StoredValue] = []
        self._bytes = 0
        self.blobs = 0

    async def check(self, value: StoredValue) -> bytes | None:
        """Checks a value; gives its raw bytes if it is in its record and sound."""
        if (value.data is None) == (value.ref is None):
            told = "neither a value nor a pointer to one" if value.data is None else "a value and a pointer"
            self._damage("value-contradicts", value, f"has {told}")
        if value.ref is not None:
            await self._follow(value)
        if value.data is None:
            return None
        try:
            return self._values.opened(value.codec, value.data, value.size, value.output_hash)
        except CorruptRecord as error:
            self._damage("value-damaged", value, error.message)
            return None

    async def load(self, value: StoredValue) -> bytes | None:
        """The same, of a value that is needed now, wherever it is."""
        if value.ref is None or value.data is not None:
            return await self.check(value)
        if not self._leads_somewhere(value):
            return None
        self.blobs += 1
        return await self._opened(value)

    async def finish(self) -> None:
        """Checks the blobs that wait for others to be read with."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self.blobs += len(waiting)
        for ended in await asyncio.gather(*map(self._opened, waiting), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def _follow(self, value: StoredValue) -> None:
        if not self._leads_somewhere(value):
            return
        size = value.size or 0
        if self._bytes + size > _BYTES_AT_ONCE:
            await self.finish()
        self._waiting.append(value)
        self._bytes += size
        if len(self._waiting) >= _AT_ONCE:
            await self.finish()

    def _leads_somewhere(self, value: StoredValue) -> bool:
        """Whether a pointer is one to a blob of this run."""
        ref = value.ref or ""
        if is_ref(ref) and ref.startswith(f"runs/{self._findings.run_id}/"):
            return True
        self._damage("pointer-damaged", value, f"points to {ref!r:.200}, which is no blob of this run")
        return False

    async def _opened(self, value: StoredValue) -> bytes | None:
        try:
            data = await ask(self._values.blobs.get, value.ref)
            return self._values.opened(value.codec, data, value.size, value.output_hash)
        except MissingBlob as error:
            self._damage("blob-missing", value, error.message)
        except CorruptRecord as error:
            self._damage("blob-damaged", value, f"{value.ref}: {error.message}")
        return None

    def _damage(self, kind: str, value: StoredValue, message: str) -> None:
        self._findings.damage(kind, value.where, f"the {value.what}: {message}")


class LaterValues(ValueCheck):
    """Checks values in records at once, and notes which blobs are to come: they are read once, in the end.

    Attributes:
        pointers: What each of them is to hold, by its ref.
    """

    def __init__(self, values: Values, findings: Findings) -> None:
        super().__init__(values, findings)
        self.pointers: dict[str, StoredValue] = {}

    async def fetched(self, ref: str) -> bytes | None:
        """The stored bytes of a blob from the store, checked; None if it is damaged."""
        value = self.pointers[ref]
        try:
            data = await ask(self._values.blobs.get, ref)
        except CorruptRecord as error:
            self._damage(
                "blob-missing" if isinstance(error, MissingBlob) else "blob-damaged", value, error.message
            )
            return None
        return data if self.arrived(ref, data) else None

    def arrived(self, ref: str, data: bytes) -> bool:
        """Whether the bytes of a blob are what is pointed to, and anything points to it."""
        value = self.pointers.pop(ref, None)
        if value is None:
            self._findings.damage("orphan-blob", ref, "nothing points to it, or it is there twice")
            return False
        self.blobs += 1
        try:
            self._values.opened(value.codec, data, value.size, value.output_hash)
        except CorruptRecord as error:
            self._damage("blob-damaged", value, f"{ref}: {error.message}")
            return False
        return True

    def finish_all(self) -> None:
        """After the last blob: those that never came are missing."""
        for value in self.pointers.values():
            self._damage("blob-missing", value, f"the blob {value.ref} isn't there")

    async def load(self, value: StoredValue) -> bytes | None:
        """What is in a blob comes too late."""
        return await self.check(value)

    async def _follow(self, value: StoredValue) -> None:
        if value.ref is not None and self._leads_somewhere(value):
            self.pointers[value.ref] = value
