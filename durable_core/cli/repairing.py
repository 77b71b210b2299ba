"""`durable signal`, `cancel`, `skip` and `fork`: what people do to runs from outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durable_core.cli import output
from durable_core.cli.finding import complete_run_id, complete_step_id, named_store
from durable_core.cli.inputs import read_inputs, read_value
from durable_core.cli.jsonable import as_document
from durable_core.cli.loading import load_modules
from durable_core.cli.options import AsJson, RunId, StoreUrl, Workflows, set_up_logging
from durable_core.engine.calls import known
from durable_core.engine.executor import DurableWorkflowExecutor
from durable_core.errors import RunEnded, RunNotFound
from durable_core.identity import check_id
from durable_core.records import CANCELLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable_core.engine.forks import ForkPlan
    from durable_core.engine.results import RunView
    from durable_core.store import Store


def signal(
    run_id: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the run waits for it by.")],
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON|@FILE|-]", help="What is sent; null when left out.", show_default=False
        ),
    ] = None,
    event_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Sent twice with one id it is one event. Default: new."),
    ] = None,
    early: Annotated[
        bool, typer.Option("--early", help="Send it although there is no such run yet; its id is then exact.")
    ] = False,
    workflows: Workflows = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send an event to a run, and wake it if it sleeps.

    A payload that isn't what the run waits for is refused here where its workflow can be imported
    (--workflows), else by the run.

    Example: durable signal june approval '{"approved": true}' --id mail-17
    """
    set_up_logging(None, None)
    opened = named_store(store)
    sent = read_value(payload, "the payload") if payload is not None else None
    load_modules(workflows)
    chosen, told_id = asyncio.run(_signalled(opened, run_id, name, sent, event_id, early))
    if as_json:
        output.write(as_document({"run_id": chosen, "name": name, "event_id": told_id}))
    else:
        output.write(f"{told_id}\n")


def cancel(run_id: RunId, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Cancel a run: whoever drives it gives way at its next write, and nobody goes on with it.

    Example: durable cancel june
    """
    set_up_logging(None, None)
    view = asyncio.run(_cancelled(named_store(store), run_id))
    if as_json:
        output.write(as_document({"run_id": view.run_id, "status": view.status, "counts": view.counts}))
    else:
        output.write(f"{view.run_id}: {view.status.lower()}\n")


def skip(
    run_id: RunId,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step; the beginning of its id is enough.")],
    given: Annotated[
        str | None,
        typer.Option("--output", metavar="JSON|@FILE|-", help="What the workflow gets of it. Default: null."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Settle a step by hand that is in doubt or FAILED: the next resume goes on as if it had given this.

    Example: durable skip june settle/pay --output '"R-17"'
    """
    set_up_logging(None, None)
    settled: dict[str, Any] = {"output": read_value(given, "--output")} if given is not None else {}
    chosen, step_id = asyncio.run(_skipped(named_store(store), run_id, step, settled))
    if as_json:
        output.write(as_document({"run_id": chosen, "step_id": step_id, "status": "SKIPPED", **settled}))
    else:
        output.write(f"{chosen}: {step_id} skipped\n")


def fork(
    run_id: RunId,
    from_step: Annotated[
        str | None,
        typer.Option("--from-step", metavar="STEP", help="Only steps begun before this one are taken over."),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option("--input", metavar="JSON|@FILE|-", help="The new run's inputs. Default: the old one's."),
    ] = None,
    new_run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="The new run's id. Default: one made up.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be taken over.")] = False,
    workflows: Workflows = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a new run from the committed steps of another, which stays as it was.

    A worker drives the new run, or `durable resume`. --dry-run shows what is kept and what runs first; a step
    that is called with another input than before runs anew, too.

    Example: durable fork june --from-step settle/pay --workflows invoices --dry-run
    """
    set_up_logging(None, None)
    if new_run_id is not None:
        check_id(new_run_id, "run id")
    opened = named_store(store)
    load_modules(workflows)
    inputs = read_inputs(given) if given is not None else None
    chosen, plan = asyncio.run(_forked(opened, run_id, from_step, inputs, new_run_id, dry_run))
    if as_json:
        told = {"run_id": plan.run_id, "forked_from": chosen, "kept": plan.kept, "left": plan.left}
        output.write(as_document({**told, "first": next(iter(plan.left), None), "dry_run": dry_run}))
        return
    first, *later = plan.left or [""]
    lines = [*(f"  kept   {one}\n" for one in plan.kept), f"  first  {first}\n" * bool(first)]
    lines += [f"  anew   {one}\n" for one in later]
    output.write(output.clean_lines("".join(lines)) if dry_run else f"{plan.run_id}\n")
    output.tell(
        f"{chosen}: {_steps(plan.kept)} {'would be ' * dry_run}taken over, {len(plan.left)} not; "
        + (f"{first} runs first" if first else "what runs first is new in the code, if anything")
    )


def _steps(found: Sequence[str]) -> str:
    return f"{len(found)} step{'s' * (len(found) != 1)}"


# ---- Doing it ----


async def _signalled(
    store: Store, given: str, name: str, payload: object, event_id: str | None, early: bool
) -> tuple[str, str]:
    async with _Opened(store, create=early) as executor:
        run_id = given if early else await complete_run_id(store.journal, given, store.url)
        sent = await executor.signal(run_id, name, payload, event_id=event_id, early=early)
        return run_id, sent


async def _cancelled(store: Store, given: str) -> RunView:
    async with _Opened(store) as executor:
        view = await executor.cancel(await complete_run_id(store.journal, given, store.url))
    if view.status != CANCELLED:
        raise RunEnded(f"the run was {view.status} already: nothing is left to cancel", run_id=view.run_id)
    return view


async def _skipped(store: Store, given: str, step: str, settled: dict[str, Any]) -> tuple[str, str]:
    async with _Opened(store) as executor:
        run_id = await complete_run_id(store.journal, given, store.url)
        step_id = await _step_of(executor, run_id, step)
        await executor.skip(run_id, step_id, **settled)
        return run_id, step_id


async def _forked(
    store: Store,
    given: str,
    from_step: str | None,
    inputs: dict[str, object] | None,
    new_run_id: str | None,
    dry_run: bool,
) -> tuple[str, ForkPlan]:
    async with _Opened(store) as executor:
        run_id = await complete_run_id(store.journal, given, store.url)
        header = await store.journal.header(run_id)
        if header is None:
            raise RunNotFound("the run was removed meanwhile", run_id=run_id)
        workflow = known(header)
        plan = await executor.fork(
            run_id,
            wf=workflow,
            new_run_id=new_run_id,
            from_step=await _step_of(executor, run_id, from_step) if from_step is not None else None,
            inputs=workflow.from_json(inputs) if inputs is not None else None,
            dry_run=dry_run,
        )
        return run_id, plan


async def _step_of(executor: DurableWorkflowExecutor, run_id: str, given: str) -> str:
    return complete_step_id([view.step_id for view in await executor.steps(run_id)], given, run_id)


class _Opened:
    """An executor on a store that is there already: a typing error in its URL makes no new one."""

    def __init__(self, store: Store, *, create: bool = False) -> None:
        self._store = store
        self._create = create
        self._executor = DurableWorkflowExecutor(store)

    async def __aenter__(self) -> DurableWorkflowExecutor:
        await self._store.journal.open(create=self._create)
        return self._executor

    async def __aexit__(self, *_: object) -> None:
        await self._executor.close()
