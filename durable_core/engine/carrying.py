"""The operations of an executor on runs as they are stored: verify, export and import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from durable_core.engine import admission, calls, exporting, importing, replaying, verifying
from durable_core.engine.findings import VerifyReport
from durable_core.engine.running import released_on_sigterm
from durable_core.errors import RunNotFound, UsageError
from durable_core.identity import check_id

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from durable_core.engine.drive import Tools
    from durable_core.engine.findings import Finding, VerifiedRun
    from durable_core.engine.results import RunResult
    from durable_core.store import Store
    from durable_core.workflow import Workflow

R = TypeVar("R")


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

    @released_on_sigterm
    async def export_run(
        self, run_id: str, path: str | os.PathLike[str], *, replace: bool = False
    ) -> exporting.ExportedRun:
        """Writes a run into one file that any store can take in, after a look for damage.

        A run that isn't over may be exported while nobody drives it.

        Args:
            run_id: The run.
            path: The file; whole or not there.
            replace: Whether a file that is there is replaced.

        Raises:
            RunNotFound: There is no such run.
            RunBusy: Somebody drives it.
            RunPruned: It is being pruned.
            CorruptRecord: It is damaged; tells of the first damages.
            UsageError: The file is there already.
            StoreMisconfigured: The file can't be written.
        """
        await self.store.journal.open()
        header = await admission.header_of(self._tools, run_id, self.store.url)
        return await exporting.export_run(self._tools, header, Path(path), replaces=replace)

    @released_on_sigterm
    async def import_run(
        self, path: str | os.PathLike[str], *, dry_run: bool = False
    ) -> importing.ImportedRun:
        """Takes a run in that was exported from any store; all of the file is looked at first.

        It keeps its id, and has the same root hash. One that isn't over waits to be resumed by hand: the
        store that it comes from may go on with it. An import that dies can be repeated, or pruned.

        Args:
            path: The file, which anybody may have made.
            dry_run: Only look whether it could be taken in.

        Raises:
            UsageError: There is no such file.
            CorruptRecord, SchemaTooNew: It is no whole exported run, or one of a newer version.
            RunInputMismatch: The store has a run of that id.
            RunBusy: Somebody imports or prunes it at the moment.
            OutputTooLarge: A record is larger than this store can take.
        """
        return await importing.import_run(self._tools, Path(path), dry_run=dry_run)

    async def replay(
        self, run_id: str, wf: Workflow[..., R] | None = None, *, on_change: str = "error"
    ) -> RunResult[R]:
        """Goes through a run again by what is recorded: no body is run, and nothing is written.

        The run may be over or not, and somebody else may be driving it.

        Args:
            run_id: The run.
            wf: Its workflow; found by name among those this process has defined when None.
            on_change: `keep` uses the recorded output of a step that is called with another input now, and
                doesn't read the items of maps.

        Returns:
            What the workflow returns now.

        Raises:
            StepNotFound: The workflow comes to a step that has no recorded outcome; names it.
            RunFailed: It fails, as recorded or otherwise.
            RunNotFound, WorkflowNotFound, RunInputMismatch: There is no such run, or it is another's.
            StepMismatch: A step is called with another input than recorded; in the failure's cause.
        """
        if on_change not in ("error", "keep"):
            raise UsageError(f"on_change={on_change!r} is unknown", remedy="Use 'error' or 'keep'")
        await self.store.journal.open(create=False)
        header = await admission.header_of(self._tools, run_id, self.store.url)
        workflow = calls.meant(wf, header)
        return await replaying.replay(self._tools, header, workflow, keeps_changed=on_change == "keep")


def _unheard(_: Finding) -> None:
    """Nobody wants to know."""
