"""What a map gives: counts, and outputs that are read back from the store as they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, overload

from pydantic_core import core_schema

from durable_core.codec import adapter_for, decode, register
from durable_core.errors import CorruptRecord, DurableError, ItemsFailed, UsageError
from durable_core.item_table import FAILED, SUCCEEDED, ItemTable, Place
from durable_core.map_reference import MapReference, OutcomeReader, reading
from durable_core.outcomes import BLOB, Outcome

if TYPE_CHECKING:
    import os

    from pydantic import GetCoreSchemaHandler, TypeAdapter


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_SEGMENTS_HELD: Final = 16
_FAILURES_TOLD: Final = 3


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[R]):
    """What came of one item.

    Attributes:
        index: Its position among the items.
        key: Under which it is known, in maps that have keys.
        attempts: Bodies that it took.
        error: Code, type, message and traceback, if it failed; else None.
        value: The output, as it is stored; None if it failed, where `output` raises.
    """

    index: int
    key: str | None
    attempts: int
    error: dict[str, Any] | None
    value: R | None

    @property
    def succeeded(self) -> bool:
        """Whether it has an output."""
        return self.error is None

    @property
    def output(self) -> R:
        """The output.

        Raises:
            ItemsFailed: The item has none: it failed.
        """
        if self.error is not None:
            raise ItemsFailed(f"item {self.index} failed: {_told(self.error)}")
        return self.value  # type: ignore[return-value]  # it succeeded: it is the function's


class MapResult(Generic[R]):
    """The outcome of a map.

    As a value it travels as a reference with a content hash, however many items it has.

    Outputs are read from the store each time they are asked for; blocking, a segment at a time. In `async`
    code hand the result to a step, or iterate over a part.

    Args:
        reference: Where the outcomes are.
        reader: What reads them.
        adapter: What restores an output; None: by the names of its classes.
        table: Where each outcome is, if that is known already.
    """

    def __init__(
        self,
        reference: MapReference,
        reader: OutcomeReader | None,
        adapter: TypeAdapter[R] | None = None,
        table: ItemTable | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        self.reference = reference
        self._reader = reader
        self._adapter = adapter
        self._table = table
        self._order = order
        self._held: dict[tuple[int, int], list[Outcome]] = {}

    # ---- Counts ----

    @property
    def succeeded(self) -> int:
        """Items with an output."""
        return self.reference.succeeded

    @property
    def failed(self) -> int:
        """Items without."""
        return self.reference.failed

    @property
    def total(self) -> int:
        """All items."""
        return self.reference.succeeded + self.reference.failed

    # ---- Items ----

    @property
    def outputs(self) -> MapOutputs[R]:
        """The outputs of the items that succeeded, in order.

        Raises:
            UsageError: The map was made with `collect=False`.
        """
        if not self.reference.collects:
            raise UsageError(
                "the map was made with collect=False, so it has no outputs in one sequence",
                run_id=self.reference.run_id,
                step_id=self.reference.step_id,
                remedy="Use iter() or to_jsonl(), or leave out collect=False",
            )
        return MapOutputs(self)

    @property
    def failures(self) -> list[ItemResult[R]]:
        """The items that failed, in order."""
        return (
            []
            if not self.failed
            else [self._result(row, at) for at, row in self._rows() if self._is(row, FAILED)]
        )

    def iter(self) -> Iterator[ItemResult[R]]:
        """Every item in order, those that failed too."""
        for at, row in self._rows():
            yield self._result(row, at)

    def to_jsonl(self, path: str | os.PathLike[str]) -> int:
        """Writes a line for each item: `index`, `key`, and `output` (as stored: see the codec) or `error`.

        The file is written beside its place and then put there, so that it is whole or not there.

        Returns:
            Lines written.
        """
        target = Path(path)
        beside = target.with_name(f".{target.name}.part")
        lines = 0
        with beside.open("wb") as file:
            for at, row in self._rows():
                outcome = self._outcome(row)
                head = json.dumps({"index": at, "key": outcome.key})[:-1]
                name, payload = (
                    ("output", self._raw(outcome)) if outcome.succeeded else ("error", outcome.payload)
                )
                file.write(b'%b,"%b":%b}\n' % (head.encode(), name.encode(), payload))
                lines += 1
        beside.replace(target)
        return lines

    def raise_for_failures(self) -> None:
        """Does nothing if every item succeeded.

        Raises:
            ItemsFailed: Some failed; tells how many, and of the first ones why.
        """
        if not self.failed:
            return
        shown = [f"item {one.index}: {_told(one.error or {})}" for one in self.failures[:_FAILURES_TOLD]]
        more = f", and {self.failed - len(shown)} more" if self.failed > len(shown) else ""
        raise ItemsFailed(
            f"{self.failed} of {self.total} items failed ({'; '.join(shown)}{more})",
            run_id=self.reference.run_id,
            step_id=self.reference.step_id,
            remedy="The map has committed and stays so; a fork from_step= this map runs all its items again",
        )

    def as_type(self, kind: type[T]) -> MapResult[T]:
        """The same, with outputs restored as this type: for a result that came back from the store."""
        return MapResult(self.reference, self._reader, adapter_for(kind), self._table, self._order)

    def __deepcopy__(self, memo: object) -> MapResult[R]:
        """Itself: nothing in it can be changed."""
        return self

    def __eq__(self, other: object) -> bool:
        """Whether it is of the same items and outputs."""
        return isinstance(other, MapResult) and _compared(self.reference) == _compared(other.reference)

    def __hash__(self) -> int:
        return hash(_compared(self.reference))

    def __repr__(self) -> str:
        where = f"{self.reference.step_id!r}, succeeded={self.succeeded}, failed={self.failed}"
        return f"MapResult({where})"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """As an annotation: an instance; with a parameter, one whose outputs are restored as that type."""
        kinds = get_args(source)

        def typed(value: MapResult[Any]) -> MapResult[Any]:
            return value.as_type(kinds[0]) if kinds else value

        return core_schema.no_info_after_validator_function(typed, core_schema.is_instance_schema(cls))

    # ---- Reading ----

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Position and row of each item."""
        table = self._known_table()
        yield from enumerate(range(len(table)) if self._order is None else self._order)

    def _is(self, row: int, state: int) -> bool:
        return self._known_table().states[row] == state

    def _result(self, row: int, at: int) -> ItemResult[R]:
        outcome = self._outcome(row)
        if not outcome.succeeded:
            return ItemResult(at, outcome.key, outcome.attempts, outcome.error(), None)
        return ItemResult(at, outcome.key, outcome.attempts, None, self._output(outcome, at))

    def _output(self, outcome: Outcome, at: int) -> R:
        try:
            found: R = decode(self._raw(outcome), self._adapter)
        except DurableError as error:
            error.run_id, error.step_id = self.reference.run_id, f"{self.reference.step_id}[{at}]"
            raise
        return found

    def _raw(self, outcome: Outcome) -> bytes:
        return self._the_reader().large(outcome) if outcome.kind == BLOB else outcome.payload

    def _outcome(self, row: int) -> Outcome:
        chunk, seq, line = self._known_table().place(row)
        held = self._held.get((chunk, seq))
        if held is None:
            goes_on = not self._held or (chunk, seq - 1) in self._held  # else somebody reads here and there
            last = min(seq + _SEGMENTS_HELD - 1 if goes_on else seq, self.reference.pins[chunk])
            found = self._the_reader().outcomes(self.reference, chunk, seq, last)
            self._held = {(chunk, seq): outcomes for seq, outcomes in found.items()}
            held = found.get(seq, [])
        if line >= len(held):
            raise CorruptRecord(
                f"segment {seq} is gone, or holds less than it did",
                run_id=self.reference.run_id,
                step_id=self.reference.step_id,
                remedy="Restore the store from a backup, or fork the run from before this step",
            )
        return held[line]

    def _known_table(self) -> ItemTable:
        if self._table is None:
            self._table, self._order = self._read_table()
        return self._table

    def _read_table(self) -> tuple[ItemTable, Sequence[int] | None]:
        """Where each outcome is, from the segments; checked against the content hash.

        Raises:
            CorruptRecord: They aren't what was committed.
        """
        table, reference = ItemTable(), self.reference
        order = self._the_reader().order(reference) if reference.order_segments else None
        rows = {place: row for row, place in enumerate(order)} if order is not None else None
        for chunk, pin in enumerate(reference.pins):
            for first in range(0, pin + 1, _SEGMENTS_HELD):
                found = self._the_reader().outcomes(
                    reference, chunk, first, min(first + _SEGMENTS_HELD - 1, pin)
                )
                for seq, outcomes in found.items():
                    for line, outcome in enumerate(outcomes):
                        place = Place(chunk, seq, line)
                        row = outcome.item_index if rows is None else rows.get(place)
                        if row is not None and row < self.total:  # a fork may have fewer items
                            table.note(row, outcome, place)
        if table.content_hash() != reference.content_hash:
            raise CorruptRecord(
                "the segments of the map don't hold what it committed",
                run_id=reference.run_id,
                step_id=reference.step_id,
                remedy="Restore the store from a backup, or fork the run from before this step",
            )
        return table, None

    def _the_reader(self) -> OutcomeReader:
        if self._reader is None:
            self._reader = reading.get()
        if self._reader is None:
            raise UsageError(
                "a map's result was asked for its items where no store is at hand",
                run_id=self.reference.run_id,
                remedy="Ask inside the workflow or a step, or of what `executor.run` and `steps` gave",
            )
        return self._reader


class MapOutputs(Sequence[R_co]):
    """The outputs of a map's items that succeeded, in order, read as they are asked for.

    As a value it travels as its map's reference.

    Args:
        result: Of the map.
    """

    def __init__(self, result: MapResult[R_co]) -> None:
        self.result = result
        self._found: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return self.result.succeeded

    @overload
    def __getitem__(self, at: int) -> R_co: ...

    @overload
    def __getitem__(self, at: slice) -> list[R_co]: ...

    def __getitem__(self, at: int | slice) -> R_co | list[R_co]:
        """One output, or some."""
        if self._found is None:
            self._found = list(self._succeeded())
        if isinstance(at, slice):
            return [self._at(pair) for pair in self._found[at]]
        return self._at(self._found[at])

    def __iter__(self) -> Iterator[R_co]:
        for pair in self._succeeded():
            yield self._at(pair)

    def __eq__(self, other: object) -> bool:
        """As lists are equal."""
        if isinstance(other, MapOutputs) and self.result == other.result:
            return True
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of lists

    def __deepcopy__(self, memo: object) -> MapOutputs[R_co]:
        """Itself: nothing in it can be changed."""
        return self

    def __repr__(self) -> str:
        return f"<{len(self)} outputs of {self.result.reference.step_id!r}>"

    def _succeeded(self) -> Iterator[tuple[int, int]]:
        return (pair for pair in self.result._rows() if self.result._is(pair[1], SUCCEEDED))

    def _at(self, pair: tuple[int, int]) -> R_co:
        at, row = pair
        return self.result._output(self.result._outcome(row), at)


def _compared(reference: MapReference) -> tuple[str, int, int]:
    """What makes two results the same: a fork's is that of the run it was forked from."""
    return reference.content_hash, reference.succeeded, reference.failed


def _told(error: dict[str, Any]) -> str:
    return f"{error.get('type', 'error')}: {error.get('message', '')}"


def _lowered(value: MapResult[Any], hashed: bool) -> object:
    """What is hashed says what the outcomes are, and not where: in a fork they are elsewhere."""
    return list(_compared(value.reference)) if hashed else [*value.reference]


def _restored(payload: object) -> MapResult[Any]:
    match payload:
        case [str(), str(), list(pins), *parts] if len(payload) == len(MapReference._fields):
            reference = MapReference._make((*payload[:2], tuple(pins), *parts))
            if reference.is_sound():
                return MapResult(reference, reading.get())
    raise ValueError("no reference to a map's outcomes")


def _restored_outputs(payload: object) -> MapOutputs[Any]:
    found = _restored(payload)
    if not found.reference.collects:
        raise ValueError("a reference to the outputs of a map that has none")
    return found.outputs


register("map", MapResult, _lowered, _restored)
register("map_outputs", MapOutputs, lambda value, hashed: _lowered(value.result, hashed), _restored_outputs)
