"""What all drives of one executor share, put together from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.arguments import check_count, check_number
from durable_core.checkpointer import Checkpointer
from durable_core.engine.drive import Tools
from durable_core.engine.lease import Renewals
from durable_core.engine.outputs import StoredOutcomes
from durable_core.engine.threads import BodyThreads
from durable_core.engine.values import Values

if TYPE_CHECKING:
    from durable_core.clock import Clock
    from durable_core.engine.dispatch import Dispatch
    from durable_core.settings import CheckpointingConfig
    from durable_core.store import Store

_LONGEST_LEASE_S = 7 * 24 * 3600


def check_settings(lease_s: float, run_crash_limit: int, grace_s: float, output_cap_bytes: int) -> None:
    """Refuses settings that are out of range.

    Raises:
        UsageError: As it says.
    """
    check_number("lease_s", lease_s, least=0, most=_LONGEST_LEASE_S, above=True)
    check_count("run_crash_limit", run_crash_limit)
    check_number("grace_s", grace_s, least=0)
    check_count("output_cap_bytes", output_cap_bytes)


def tools_of(
    store: Store,
    clock: Clock,
    *,
    lease_s: float,
    run_crash_limit: int,
    grace_s: float,
    output_cap_bytes: int,
    checkpointing: CheckpointingConfig | None = None,
    renewals: Renewals | None = None,
    dispatch: Dispatch | None = None,
) -> Tools:
    """The tools of an executor; its settings are checked.

    Args:
        store: Where its runs are.
        clock: The source of time.
        lease_s, run_crash_limit, grace_s, output_cap_bytes: As of the executor.
        checkpointing: Whether, and when, checkpoints of agents are saved.
        renewals: What keeps leases; a thread of its own when None.
        dispatch: Is told of work for others.
    """
    values = Values(store.blobs, store.inline_max_bytes, output_cap_bytes)
    return Tools(
        journal=store.journal,
        values=values,
        outcomes=StoredOutcomes(store.journal, values),
        clock=clock,
        renewals=renewals or Renewals(store.journal, clock),
        threads=BodyThreads(),
        lease_ms=max(1, round(lease_s * 1000)),
        grace_s=grace_s,
        run_crash_limit=run_crash_limit,
        checkpointer=(
            Checkpointer(checkpointing, store, clock=clock)
            if checkpointing is not None and checkpointing.enabled
            else None
        ),
        dispatch=dispatch,
        checkpoints=store.checkpoints,
    )
