"""What is known of each item of a map, in some 60 bytes an item: a million fit into 60 MB."""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.outcomes import BLOB, ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from durable_core.outcomes import Outcome

MISSING: Final = 0
SUCCEEDED: Final = 1
FAILED: Final = 2

_GROWN_BY: Final = 4096  # rows
_DIGEST_BYTES: Final = 32
_NO_DIGEST: Final = bytes(_DIGEST_BYTES)


class Place(NamedTuple):
    """Where an outcome is stored: the chunk, the segment's seq, and the line there."""

    chunk: int
    seq: int
    line: int


class ItemTable:
    """Rows in the order of the items, or, in a map with keys, in the order in which keys became known.

    Attributes:
        states: MISSING, SUCCEEDED or FAILED, a byte each.
    """

    def __init__(self) -> None:
        self.states = bytearray()
        self.rows_of_keys: dict[bytes, int] = {}
        self._size = 0
        self._marks = array("Q")
        self._indexes = array("I")
        self._chunks = array("I")
        self._seqs = array("I")
        self._lines = array("I")
        self._digests = bytearray()
        self.succeeded = 0
        self.failed = 0

    def __len__(self) -> int:
        return self._size

    def row_of(self, key: str) -> int:
        """The row of a key; a new one at the end, the first time."""
        return self.rows_of_keys.setdefault(key_digest(key), len(self.rows_of_keys))

    def knows(self, row: int) -> bool:
        """Whether anything has come of the item of a row."""
        return row < self._size and self.states[row] != MISSING

    def is_other(self, row: int, mark: str) -> bool:
        """Whether an outcome, known or forgotten, is of another item than the one with this mark."""
        return row < self._size and self._marks[row] not in (0, int(mark, 16))

    def mark(self, row: int) -> str:
        """The beginning of its item's hash, as an `Outcome` has it."""
        return f"{self._marks[row]:016x}"

    def index(self, row: int) -> int:
        """Its item's position, when it was run."""
        return self._indexes[row]

    def place(self, row: int) -> Place:
        """Where its outcome is."""
        return Place(self._chunks[row], self._seqs[row], self._lines[row])

    def note(self, row: int, outcome: Outcome, place: Place) -> None:
        """Takes an outcome in: the first success stays; until there is one, the latest failure.

        An outcome of another item, which a fork has in that place, replaces it.
        """
        if row >= self._size:
            self._grow(row + 1)
        if self.states[row] == SUCCEEDED and self.mark(row) == outcome.mark:
            return
        self.forget(row)
        if outcome.succeeded:
            self.succeeded += 1
        else:
            self.failed += 1
        self.states[row] = SUCCEEDED if outcome.succeeded else FAILED
        self._marks[row] = int(outcome.mark, 16)
        self._indexes[row] = outcome.item_index
        self._chunks[row], self._seqs[row], self._lines[row] = place
        self._digests[row * _DIGEST_BYTES : (row + 1) * _DIGEST_BYTES] = digest_of(outcome)

    def forget(self, row: int) -> None:
        """An item has no outcome any more: it is to be run again. Which item it was stays known."""
        before, self.states[row] = self.states[row], MISSING
        self.succeeded -= before == SUCCEEDED
        self.failed -= before == FAILED

    def content_hash(self, order: Iterable[int] | None = None) -> str:
        """Hex SHA-256 over the state and the output's own SHA-256 of each item, in order.

        Args:
            order: Rows; all of them when None.
        """
        made = sha256()
        for row in range(self._size) if order is None else order:
            made.update(self.states[row : row + 1])
            made.update(self._digests[row * _DIGEST_BYTES : (row + 1) * _DIGEST_BYTES])
        return made.hexdigest()

    def rows(self, state: int) -> Iterator[int]:
        """Those of a state, in order."""
        at = self.states.find(state)
        while at >= 0:
            yield at
            at = self.states.find(state, at + 1)

    def _grow(self, size: int) -> None:
        self._size = size
        more = size - len(self.states)
        if more > 0:
            more = max(more, _GROWN_BY)
            self.states.extend(bytes(more))
            self._digests.extend(bytes(more * _DIGEST_BYTES))
            for column in (self._marks, self._indexes, self._chunks, self._seqs, self._lines):
                column.frombytes(bytes(more * column.itemsize))


def key_digest(key: str) -> bytes:
    """What a key is known by in memory, however long it is."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]


def digest_of(outcome: Outcome) -> bytes:
    """SHA-256 of an output's raw bytes; zeros for a failure, whose traceback differs from place to place."""
    if outcome.kind == ERROR:
        return _NO_DIGEST
    if outcome.kind == BLOB:
        return bytes.fromhex(outcome.pointer().output_hash)
    return sha256(outcome.payload).digest()
