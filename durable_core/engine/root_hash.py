"""The root hash of a run: one hash over what its records say, on which all stores agree.

It covers ids, statuses, input and output hashes and keys; not times, attempts, fences or where an output is
stored, which differ between stores, between a run and its copy, and between a run that was killed and one
that wasn't. The outcomes of a map that has committed are covered by its output's hash; those of one that
hasn't by a sum, since their order is no matter.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from durable_core.item_table import digest_of
from durable_core.records import ITEM_KIND, PENDING, RUNNING

if TYPE_CHECKING:
    from durable_core.outcomes import Outcome
    from durable_core.records import Event, RunHeader, StepRecord

_VERSION: Final = "durable-root-1"
_MODULUS: Final = 2**256


class RootHash:
    """Takes in the records of a run, of each kind in the order of their keys.

    Args:
        header: Of the run.
    """

    def __init__(self, header: RunHeader) -> None:
        # Whether somebody drives it at the moment says nothing about the run.
        status = PENDING if header.status == RUNNING else header.status
        self._hash = sha256()
        self._add(_VERSION, header.run_id, header.workflow, status)
        self._add("input", header.input_hash, header.input_data_hash)
        self._add("output", header.output_hash)
        self._outcomes: dict[str, int] = {}

    def step(self, record: StepRecord) -> None:
        """A step of this life. What only tells that an item may have killed its process is left out."""
        if record.kind == ITEM_KIND:
            return
        self._add(
            "step", record.step_id, str(record.step_index), record.kind, record.status, record.input_hash,
            record.output_hash, record.idempotency_key,
        )  # fmt: skip

    def outcome(self, step_id: str, outcome: Outcome) -> None:
        """What came of an item of a map that hasn't committed.

        Raises:
            CorruptRecord: It can't be read.
        """
        name = outcome.key if outcome.key is not None else str(outcome.item_index)
        parts = (name, outcome.mark, str(outcome.succeeded), digest_of(outcome).hex())
        made = sha256(b"".join(map(_part, parts))).digest()
        self._outcomes[step_id] = (self._outcomes.get(step_id, 0) + int.from_bytes(made)) % _MODULUS

    def event(self, event: Event) -> None:
        """An event of this life."""
        self._add("event", event.name, event.output_hash, str(event.taken_by is not None))

    def hexdigest(self) -> str:
        """Over all that was taken in."""
        for step_id, total in sorted(self._outcomes.items()):
            self._add("outcomes", step_id, f"{total:064x}")
        self._outcomes = {}
        return self._hash.hexdigest()

    def _add(self, *parts: str | None) -> None:
        self._hash.update(b"".join(map(_part, parts)))


def _part(text: str | None) -> bytes:
    """A text after its length, so that no two lists of texts give the same bytes."""
    if text is None:
        return b"\xff" * 8
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "big") + data
