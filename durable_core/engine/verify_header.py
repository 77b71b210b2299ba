"""Whether a run's header is one that we write, and agrees with what lies under it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from durable_core.clock import epoch_ms
from durable_core.engine.invocation import gone_of
from durable_core.engine.verify_values import StoredValue
from durable_core.errors import CorruptRecord
from durable_core.journal.damaged import HEADER_TYPES, why_unreadable
from durable_core.records import (
    CANCELLED,
    COMMITTED,
    COMPLETED,
    ENDED,
    FAILED,
    PENDING,
    PRUNING,
    RUNNING,
    SKIPPED,
    SUSPENDED,
    RunHeader,
    parse_object,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from durable_core.engine.findings import Findings
    from durable_core.identity import KeyMaker

SHA256: Final = re.compile("[0-9a-f]{64}")
_JSON: Final = ("error", "counts", "owner_process")


class Life(NamedTuple):
    """What of a run's header its records are judged by.

    Attributes:
        base_fence: Records with a fence up to this are of an earlier life of the id.
        fence: No record has a higher one; None where the header can't tell.
        status: Of the run; None where the header can't tell.
        keys: Make the idempotency keys that its steps may have: its own, and those of the runs that it was
            forked from.
        knows_all_keys: Whether those are all.
    """

    run_id: str
    base_fence: int = 0
    fence: int | None = None
    status: str | None = None
    keys: Sequence[KeyMaker] = ()
    knows_all_keys: bool = True

    @property
    def is_fork(self) -> bool:
        """Whether its records may be copies of another run's."""
        return len(self.keys) > 1 or not self.knows_all_keys


def unsound(header: RunHeader) -> str | None:
    """Why a header can't be one that we wrote; None if it can."""
    return why_unreadable({name: getattr(header, name) for name in HEADER_TYPES})


def check_header(header: RunHeader, findings: Findings) -> None:
    """What a header says that can't be so."""
    for message in _contradictions(header):
        findings.damage("header-contradicts", None, message)
    for name in _JSON:
        try:
            parse_object(getattr(header, name), header.run_id)
        except CorruptRecord as error:
            findings.damage("header-json", None, f"its {name}: {error.message}")
    try:
        gone_of(header)
    except CorruptRecord as error:
        findings.damage("header-json", None, f"its gone: {error.message}")
    for name in ("created_at", "updated_at", "ended_at"):
        if not is_time(getattr(header, name)):
            findings.damage("header-time", None, f"its {name} is {getattr(header, name)!r:.60}")
    if SHA256.fullmatch(header.input_hash) is None:
        findings.damage("header-contradicts", None, "its input_hash is no hash")


def values_of(header: RunHeader) -> Iterator[StoredValue]:
    """What a header stores."""
    yield StoredValue(
        None, "inputs", header.input_codec, header.input_data, header.input_ref, header.input_size,
        header.input_data_hash,
    )  # fmt: skip
    if header.status == COMPLETED:
        yield StoredValue(
            None, "output", header.output_codec, header.output_data, header.output_ref, header.output_size,
            header.output_hash,
        )  # fmt: skip


def check_counts(header: RunHeader, found: Counter[str], damaged: int, findings: Findings) -> bool:
    """Whether all outcomes are there that a header counts: none vanishes but by a prune.

    A header may count fewer than there are: an owner that was late has written the others since.

    Args:
        header: Of the run.
        found: Steps by status.
        damaged: Those that can't be understood, and may be any.
        findings: Where damage goes.
    """
    try:
        counted = parse_object(header.counts, header.run_id)
    except CorruptRecord:  # told by `check_header`
        return True
    lasting = (COMMITTED, SKIPPED, FAILED) if header.status in (COMPLETED, FAILED) else (COMMITTED, SKIPPED)
    missing = {
        status: counted[status]
        for status in lasting
        if type(counted.get(status)) is int and counted[status] > found[status] + damaged
    }
    for status, count in missing.items():
        findings.damage(
            "steps-missing", None, f"the header counts {count} {status} steps, and {found[status]} are there"
        )
    return not missing


def is_time(text: Any) -> bool:
    """Whether a text is a time as we write it, or none."""
    if text is None:
        return True
    try:
        epoch_ms(text)
    except (TypeError, ValueError):
        return False
    return True


def _contradictions(header: RunHeader) -> Iterator[str]:
    status, owned = header.status, header.owner is not None
    if not 0 <= header.base_fence <= header.fence:
        yield f"its fence is {header.fence} and its base_fence {header.base_fence}"
    if status in (RUNNING, PRUNING) and header.fence == header.base_fence:
        yield f"it is {status}, and nobody ever acquired it"
    if status == RUNNING and not owned:
        yield f"it is {status}, and nobody drives it"
    if status in (SUSPENDED, *ENDED) and owned:
        yield f"it is {status}, and has an owner"
    if not owned and header.lease_until_ms > 0:
        yield "it has a lease and no owner"
    if status in ENDED and header.ended_at is None:
        yield f"it is {status}, and has no end"
    if status in (PENDING, RUNNING, SUSPENDED) and header.ended_at is not None:
        yield f"it is {status}, and has ended"
    if status == FAILED and header.error is None:
        yield "it is FAILED, and has no error"
    if status in (PENDING, SUSPENDED, CANCELLED) and header.output_hash is not None:
        yield f"it is {status}, and has an output"
    counts = (header.wake_count, header.crashes, header.idle_drives)
    if min(header.lease_until_ms, header.due_at_ms, *counts) < 0:
        yield "it counts or dates something below zero"
