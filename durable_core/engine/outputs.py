"""Reading the outcomes of maps back, for whoever holds a `MapResult`."""

from __future__ import annotations

import contextlib
import json
from contextlib import closing
from typing import TYPE_CHECKING

from durable_core.errors import CorruptRecord
from durable_core.item_table import Place
from durable_core.map_reference import OutcomeReader, reading
from durable_core.outcomes import lines_of, outcomes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.engine.values import Values
    from durable_core.journal.base import Journal
    from durable_core.map_reference import MapReference
    from durable_core.outcomes import Outcome


class StoredOutcomes(OutcomeReader):
    """From a journal and its blobs; blocking, in any thread.

    Args:
        journal: Where the segments are.
        values: What large outputs are read by.
    """

    def __init__(self, journal: Journal, values: Values) -> None:
        self._journal = journal
        self._values = values

    def outcomes(self, of: MapReference, chunk: int, first: int, last: int) -> dict[int, list[Outcome]]:
        """As of readers."""
        with closing(self._journal.open_reader()) as reader:
            segments = reader.read(of.run_id, of.step_id, chunk, max(first, of.first_seq), last)
        return {one.seq: outcomes_of(one) for one in segments if one.fence > of.base_fence}

    def order(self, of: MapReference) -> list[Place]:
        """As of readers."""
        last = of.pins[0]
        with closing(self._journal.open_reader()) as reader:
            segments = reader.read(of.run_id, of.step_id, 0, last - of.order_segments + 1, last)
        try:
            places = [Place._make(json.loads(line)) for one in segments for line in lines_of(one)]
        except (ValueError, TypeError) as error:
            raise CorruptRecord(
                f"the order of the map's items can't be read: {error}", run_id=of.run_id, step_id=of.step_id
            ) from error
        if len(places) != of.succeeded + of.failed:
            raise CorruptRecord(
                f"the order of the map's items has {len(places)} of {of.succeeded + of.failed} places",
                run_id=of.run_id,
                step_id=of.step_id,
            )
        return places

    def large(self, outcome: Outcome) -> bytes:
        """As of readers."""
        ref, codec, size, output_hash = outcome.pointer()
        return self._values.opened(codec, self._values.blobs.read(ref), size, output_hash)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Results that are restored meanwhile read by this."""
        token = reading.set(self)
        try:
            yield
        finally:
            reading.reset(token)
