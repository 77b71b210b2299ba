"""The statements of the PostgreSQL journal on headers: conditional writes, each one statement if it succeeds.

Under READ COMMITTED a statement that meets a row which another transaction is just writing waits for it, and
then looks at its condition again, on the row as it is by then. Where a server is set to a stricter isolation
it is refused instead (40001), and is made again: to the same end.

What decides about leases is the server's time, or, where a clock was given, `now`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import rfc3339
from durable_core.journal._postgres_rows import RUN, RUN_COLUMNS, named_marks
from durable_core.records import ACTIVE, CANCELLED, ENDED, PENDING, PRUNING, SUSPENDED, TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.journal.base import Claim, Departure, Lease, RunFilter
    from durable_core.records import RunHeader

# The same throughout a statement, however long it waits: a lease is never judged by a later moment than that
# from which the next one counts.
NOW: Final = "coalesce(%(now)s::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint)"
IS_ACTIVE: Final = f"status IN ({', '.join(repr(status) for status in ACTIVE)})"

HEADER: Final = f"SELECT {RUN} FROM durable.runs WHERE run_id = %(run_id)s"
HEADER_AND_TIME: Final = f"SELECT {RUN}, {NOW} FROM durable.runs WHERE run_id = %(run_id)s"

# A header where there is none, or over the tombstone that it goes on from.
#
#   A   create ─▶ applied
#   B         create ─▶ waits for A's, then refused by it; A, whose reply was lost, finds its own owner in it
_GIVEN: Final = tuple(name for name in RUN_COLUMNS if name not in ("lease_until_ms", "due_at_ms"))
CREATE: Final = (
    f"INSERT INTO durable.runs ({', '.join(_GIVEN)}, lease_until_ms, due_at_ms)"
    f" SELECT {named_marks(_GIVEN)}, CASE WHEN %(owner)s::text IS NULL THEN 0 ELSE until_ms END,"
    " CASE WHEN %(owner)s::text IS NULL THEN %(due_at_ms)s::bigint ELSE until_ms END"
    f" FROM (SELECT {NOW} + %(lease_ms)s::bigint AS until_ms) AS lease"
    f" ON CONFLICT (run_id) DO UPDATE SET ({', '.join(RUN_COLUMNS)})"
    f" = ROW ({', '.join(f'EXCLUDED.{name}' for name in RUN_COLUMNS)})"
    f" WHERE runs.status = '{TOMBSTONE}' AND runs.fence = EXCLUDED.base_fence AND EXCLUDED.base_fence > 0"
    " RETURNING lease_until_ms, due_at_ms"
)


def creation(header: RunHeader, lease_ms: int, now: int | None) -> dict[str, Any]:
    """What CREATE takes."""
    return {**asdict(header), "lease_ms": lease_ms, "now": now}


# The next fence, for whoever still finds the fence as seen and the run free.
#
#   A   (dies)
#   B         header: fence 1 ── acquire 1→2 ─▶ applied
#   C         header: fence 1 ────────── acquire 1→2 ─▶ waits for B's, then refused: the fence is 2 by now
ACQUIRE: Final = (
    "UPDATE durable.runs SET status = %(status)s, owner = %(owner)s, owner_process = %(owner_process)s,"
    f" fence = fence + 1, lease_until_ms = {NOW} + %(lease_ms)s::bigint,"
    f" due_at_ms = {NOW} + %(lease_ms)s::bigint, crashes = %(crashes)s, gone = %(gone)s,"
    " fingerprint = coalesce(%(fingerprint)s, fingerprint), updated_at = %(at)s,"
    f" ended_at = CASE WHEN %(status)s = '{PRUNING}' THEN ended_at END"
    " WHERE run_id = %(run_id)s AND fence = %(fence)s AND status = ANY(%(statuses)s)"
    f" AND CASE WHEN %(dead_owner)s::text IS NULL THEN lease_until_ms < {NOW} ELSE owner = %(dead_owner)s END"
    f" RETURNING {RUN}"
)


def acquisition(
    seen: RunHeader, claim: Claim, statuses: Sequence[str], dead_owner: str | None, now: int | None, at: str
) -> dict[str, Any]:
    """What ACQUIRE takes."""
    return {
        **asdict(claim),
        "run_id": seen.run_id,
        "fence": seen.fence,
        "statuses": list(statuses),
        "dead_owner": dead_owner,
        "now": now,
        "at": at,
    }


# A longer lease, for its holder; the header tells of wake-ups and of who took over.
#
#   A   acquire ── renew ─▶ applied ── (paused) ────────── renew ─▶ refused: give way
#   B                                       acquire
RENEW: Final = (
    f"UPDATE durable.runs SET lease_until_ms = {NOW} + %(lease_ms)s::bigint,"
    f" due_at_ms = {NOW} + %(lease_ms)s::bigint"
    f" WHERE run_id = %(run_id)s AND owner = %(owner)s AND fence = %(fence)s RETURNING {RUN}"
)


def renewal(lease: Lease, lease_ms: int, now: int | None) -> dict[str, Any]:
    """What RENEW takes."""
    return {**lease._asdict(), "lease_ms": lease_ms, "now": now}


# Gives the run up: released, suspended or ended; only by its owner, and only if nothing woke it meanwhile.
#
#   A   count 0 ── looks: no event ────────────────── suspend [count = 0] ─▶ refused: look again
#   S                               signal: count 1
LEAVE: Final = (
    "UPDATE durable.runs SET status = %(status)s, owner = CASE WHEN %(keep_lease)s THEN owner END,"
    " owner_process = CASE WHEN %(keep_lease)s THEN owner_process END,"
    " lease_until_ms = CASE WHEN %(keep_lease)s THEN lease_until_ms ELSE 0 END, due_at_ms = %(due_at_ms)s,"
    " output_hash = %(output_hash)s, output_data = %(output_data)s, output_ref = %(output_ref)s,"
    " output_codec = %(output_codec)s, output_size = %(output_size)s,"
    " error = CASE WHEN %(keep_error)s THEN error ELSE %(error)s END, counts = %(counts)s,"
    " idle_drives = %(idle_drives)s, updated_at = %(at)s,"
    f" ended_at = CASE WHEN %(status)s = '{PRUNING}' THEN ended_at ELSE %(ended_at)s END"
    " WHERE run_id = %(run_id)s AND owner = %(owner)s AND fence = %(fence)s"
    " AND (%(wake_count)s::bigint IS NULL OR wake_count = %(wake_count)s)"
    f" RETURNING {RUN}"
)


def leaving(lease: Lease, departure: Departure, wake_count: int | None, now_ms: int) -> dict[str, Any]:
    """What LEAVE takes."""
    at = rfc3339(now_ms)
    ended_at = at if departure.status in ENDED else None
    return {
        **asdict(departure),
        **lease._asdict(),
        "wake_count": wake_count,
        "at": at,
        "ended_at": ended_at,
    }


# The end of an active run by somebody else: the higher fence keeps its owner from writing more.
#
#   A   acquire fence 1 ── begin s1 ─────────────────────── begin s2 ─▶ refused: the header isn't A's any more
#   X                               cancel: fence 2
CANCEL: Final = (
    f"UPDATE durable.runs SET status = '{CANCELLED}', owner = NULL, owner_process = NULL, lease_until_ms = 0,"
    " fence = fence + 1, error = %(error)s, updated_at = %(at)s, ended_at = %(at)s"
    f" WHERE run_id = %(run_id)s AND fence = %(fence)s AND {IS_ACTIVE} RETURNING {RUN}"
)

# One more in the wake count: a driver that has looked in vain looks again instead of suspending.
#
#   A   count 0 ── looks: nothing ───────────── suspend [count = 0] ─▶ refused
#   W                              wake ─▶ applied: count 1
WOKEN: Final = (
    "UPDATE durable.runs SET wake_count = wake_count + 1,"
    f" due_at_ms = CASE WHEN status = '{SUSPENDED}' THEN {NOW} ELSE due_at_ms END,"
    f" status = CASE WHEN status = '{SUSPENDED}' THEN '{PENDING}' ELSE status END"
)
WAKE: Final = f"{WOKEN} WHERE run_id = %(run_id)s AND {IS_ACTIVE} AND status = %(status)s RETURNING {RUN}"

DUE: Final = (
    f"SELECT {RUN} FROM durable.runs WHERE {IS_ACTIVE} AND due_at_ms <= {NOW} AND lease_until_ms < {NOW}"
    " ORDER BY due_at_ms, run_id LIMIT %(limit)s"
)


# By the bytes of ASCII, as every store has it, whatever the server's own collation does.
_HAS_TEXT: Final = (
    "(strpos(lower(run_id), %(plain)s) > 0 OR strpos(lower(workflow), %(plain)s) > 0"
    """ OR strpos(lower(session_id COLLATE "C"), %(plain)s) > 0"""
    """ OR strpos(lower(forked_from COLLATE "C"), %(plain)s) > 0"""
    """ OR strpos(lower(error COLLATE "C"), %(quoted)s) > 0)"""
)


def listing(wanted: RunFilter) -> tuple[str, dict[str, object]]:
    """The query for one page of headers, newest first, and what it takes."""
    conditions, values = [f"status <> '{TOMBSTONE}'"], dict[str, object](limit=wanted.limit)
    if wanted.status is not None:
        conditions.append("status = %(status)s")
        values["status"] = wanted.status
    if wanted.workflow is not None:
        conditions.append("workflow = %(workflow)s")
        values["workflow"] = wanted.workflow
    if wanted.prefix:
        conditions.append("starts_with(run_id, %(prefix)s)")
        values["prefix"] = wanted.prefix
    if wanted.since is not None:
        conditions.append("created_at >= %(since)s")
        values["since"] = wanted.since
    if wanted.until is not None:
        conditions.append("created_at < %(until)s")
        values["until"] = wanted.until
    if wanted.text is not None:
        conditions.append(_HAS_TEXT)
        values["plain"], values["quoted"] = wanted.needles()
    if wanted.before:
        conditions.append("(created_at, run_id) < (%(created_at)s, %(run_id)s)")
        values["created_at"], values["run_id"] = wanted.before
    query = (
        f"SELECT {RUN} FROM durable.runs WHERE {' AND '.join(conditions)}"
        " ORDER BY created_at DESC, run_id DESC LIMIT %(limit)s"
    )
    return query, values
