"""The operations of an executor on runs as they are stored: verify, export and import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.engine import verifying
from durable_core.engine.findings import VerifyReport
from durable_core.engine.running import released_on_sigterm
from durable_core.errors import RunNotFound
from durable_core.identity import check_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from durable_core.engine.drive import Tools
    from durable_core.engine.findings import Finding, VerifiedRun
    from durable_core.store import Store


class Carrying:
    """What an executor does with runs as they are stored."""

    store: Store
    _tools: Tools

    @released_on_sigterm
    async def verify(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        repair: bool = False,
        on_run: Callable[[VerifiedRun], None] | None = None,
        on_repair: Callable[[Finding], None] | None = None,
    ) -> VerifyReport:
        """Looks for damage: in each record, and in what they say of each other. No body is run.

        Also gives each run's root hash. One damaged record hides no other. A run that is being driven may be
        verified; nothing is written but repairs.

        Args:
            run_ids: These; all runs, and what is left of others, when None.
            repair: Delete what belongs to nothing any more, once it is a day old. Nothing else is safe.
            on_run: Called with each run that was verified.
            on_repair: Called with each finding before it is repaired.

        Raises:
            RunNotFound: There is no run of one of these ids, nor anything left of one.
            JournalUnavailable, StoreMisconfigured: The store can't be reached, or doesn't permit it.
        """
        ids = (run_ids,) if isinstance(run_ids, str) else run_ids
        for run_id in ids or ():
            check_id(run_id, "run id")
        await self.store.journal.open()
        runs: list[VerifiedRun] = []
        async for found in (
            verifying.verified_runs(self._tools) if ids is None else verifying.verified_each(self._tools, ids)
        ):
            if ids is not None and found.status is None and not found.findings:
                raise RunNotFound(
                    f"there is no such run in {self.store.url}",
                    run_id=found.run_id,
                    remedy="See which there are with `durable list`, and check the store's URL",
                )
            if repair:
                found = await verifying.repaired(self._tools, found, on_repair or _unheard)
            runs.append(found)
            if on_run is not None:
                on_run(found)
        return VerifyReport(tuple(runs))


def _unheard(_: Finding) -> None:
    """Nobody wants to know."""
