"""`durable show`: a run, a step, an item. It only reads."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from durable_core.cli import output
from durable_core.cli.facts import IN_DOUBT
from durable_core.cli.finding import named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.maps import item_named
from durable_core.cli.options import (  # noqa: TC001 - typer reads the annotations at run time
    AsJson,
    RunId,
    StoreUrl,
)
from durable_core.cli.outcome import CORRUPT
from durable_core.cli.reading import root_hash, shown, shown_item, shown_step
from durable_core.cli.render import item_text, run_text, step_text, value_text
from durable_core.errors import UsageError
from durable_core.records import COMMITTED


def show(
    run_id: RunId,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="ID",
            help="One step, with its output; the beginning of its id is enough. Or one item of a map:"
            " 'extract[12]', or 'extract[KEY]'.",
        ),
    ] = None,
    in_doubt: Annotated[
        bool, typer.Option("--in-doubt", help="Only the steps of which nobody knows what came of them.")
    ] = False,
    root: Annotated[
        bool, typer.Option("--root", help="Also its root hash, for which all of it is read.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a run and its steps, or one step with its output, error and attempts.

    Of a map it tells how many items are done; the steps inside items aren't listed, but --step shows those of
    one item. A damaged record is marked; the exit code is then 6.

    Example: durable show june --step charge
    """
    if in_doubt and step is not None:
        raise UsageError("--in-doubt lists steps, and --step shows one", remedy="Leave one of them out")
    if root and step is not None:
        raise UsageError("--root is of the run, and --step shows a step", remedy="Leave one of them out")
    opened = named_store(store)
    if step is None:
        run, steps = asyncio.run(shown(opened, run_id))
        if root:
            run["root_hash"] = asyncio.run(root_hash(opened, run["run_id"]))
        if in_doubt:
            steps = [one for one in steps if one["state"] == IN_DOUBT]
        for one in steps:
            if one["error"]:
                del one["error"]["traceback"]
        output.write(as_document({"run": run, "steps": steps}) if as_json else run_text(run, steps))
        damaged = run["corrupt"] or any(one["corrupt"] for one in steps)
    elif (item := item_named(step)) is not None:
        run, found, value, steps = asyncio.run(shown_item(opened, run_id, item))
        if as_json:
            document = {"run_id": run["run_id"], "item": {**found, "output": value}, "steps": steps}
            output.write(as_document(document))
        else:
            text = value_text(value) if found["status"] == COMMITTED else None
            output.write(item_text(run["run_id"], found, text, steps))
        damaged = any(one["corrupt"] for one in steps)
    else:
        run, found, value = asyncio.run(shown_step(opened, run_id, step))
        if as_json:
            output.write(as_document({"run_id": run["run_id"], "step": {**found, "output": value}}))
        else:
            has_output = found["output_hash"] and not found["corrupt"]
            output.write(step_text(run["run_id"], found, value_text(value) if has_output else None))
        damaged = found["corrupt"]
    if damaged:
        raise typer.Exit(CORRUPT)
