"""`durable cost`: what a run costs on DynamoDB and S3, or would."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_core.cli import output
from durable_core.cli.finding import named_store
from durable_core.cli.jsonable import as_document
from durable_core.cli.map_report import log_of
from durable_core.cli.options import AsJson, StoreUrl  # noqa: TC001 - typer reads them at run time
from durable_core.cli.reading import run_of
from durable_core.cli.render import size
from durable_core.cli.tables import Column, facts_text, table
from durable_core.cost.estimate import estimate
from durable_core.cost.of_run import RunCost
from durable_core.cost.prices import AS_OF, PRICES, REGION, STORAGE
from durable_core.errors import RunNotFound, UsageError
from durable_core.identity import check_id
from durable_core.journal.base import RunFilter
from durable_core.records import COMPLETED, MAP_KIND

if TYPE_CHECKING:
    from durable_core.cli.facts import Document
    from durable_core.cost.bill import Bill
    from durable_core.cost.estimate import Estimate
    from durable_core.records import RunHeader
    from durable_core.store import Store

_BILL: Final = (
    Column("what", folds=True),
    Column("requests", right=True),
    Column("units", right=True),
    Column("USD", right=True),
)
_PARTS: Final = (
    Column("of", folds=True),
    Column("count", right=True),
    Column("write units", right=True),
    Column("S3 puts", right=True, from_width=60),
    Column("USD", right=True),
)
_LINES: Final = (
    ("DynamoDB writes", "writes", "write_units"),
    ("DynamoDB reads", "reads", "read_units"),
    ("S3 puts", "s3_puts", "s3_puts"),
    ("S3 gets", "s3_gets", "s3_gets"),
)


def cost(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN_ID", help="The run; the beginning of its id is enough.")
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option(
            "--estimate",
            metavar="WORKFLOW",
            help="What a run of it would cost, from its newest completed one.",
        ),
    ] = None,
    items: Annotated[
        int | None, typer.Option("--items", min=1, metavar="N", help="Over how many items; with --estimate.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a run costs on DynamoDB and S3: requests, units, bytes, dollars.

    It is reckoned from the sizes of the records, so a run in any store will do. Pure steps cost less than
    told here, at-most-once steps more. Prices are of one region and date, which are told too.

    Example: durable cost june

    Example: durable cost --estimate month_end --items 100000
    """
    if (run_id is None) == (workflow is None):
        raise UsageError("give either a run or --estimate WORKFLOW", remedy="See durable cost --help")
    if (workflow is None) != (items is None):
        raise UsageError("--estimate and --items go together", remedy="See durable cost --help")
    header, found = asyncio.run(_reckoned(named_store(store), run_id, workflow))
    scaled = estimate(found, items) if items is not None else None
    document = cost_document(header.run_id, found)
    if scaled is not None and items is not None:
        document["estimate"] = _estimate_document(header, scaled, items)
    output.write(as_document(document) if as_json else _text(document))


async def cost_of(store: Store, header: RunHeader) -> RunCost:
    """The bill of a run, from all that is recorded of it in this life of its id.

    Raises:
        CorruptRecord: A record can't be read.
    """
    found, journal = RunCost(), store.journal
    async for records in journal.steps(header.run_id):
        for record in records:
            if record.fence <= header.base_fence:
                continue
            found.add_step(record)
            if record.kind != MAP_KIND:
                continue
            async for segment in log_of(store, header, record):
                found.add_segment(segment)
            async for chunks in journal.chunks(header.run_id, record.step_id):
                for chunk in chunks:
                    if chunk.fence > header.base_fence:
                        found.add_chunk(chunk)
    async for events in journal.events(header.run_id):
        for event in events:
            if event.fence > header.base_fence:
                found.add_event(event)
    found.add_header(header)
    return found


def cost_document(run_id: str, found: RunCost) -> Document:
    """The bill of a run, for programs."""
    parts = [
        *(("step", name, *part) for name, part in found.steps.items()),
        *(("map", name, *part) for name, part in found.maps.items()),
    ]
    stored = {name: getattr(found, name) for name in STORAGE}
    month = sum(stored[name] * price / 1e9 for name, price in STORAGE.items())
    return {
        "run_id": run_id,
        "region": REGION,
        "as_of": AS_OF,
        "prices": {**PRICES, **{f"{name}_gb_month": price for name, price in STORAGE.items()}},
        "bill": _bill(found.total),
        "stored": {**stored, "usd_per_month": month},
        "parts": [
            {"kind": kind, "name": name, "count": count, **_bill(bill)}
            for kind, name, count, bill in sorted(parts, key=lambda part: -part[3].dollars)
        ],
        "estimate": None,
    }


def dollars(amount: float) -> str:
    """Money as small as it is here: two digits that say something."""
    if amount == 0:
        return "0"
    places = next(n for n in range(2, 12) if n == 11 or amount * 10**n >= 10)
    return f"{amount:,.{places}f}"


# ---- Reading ----


async def _reckoned(store: Store, run_id: str | None, workflow: str | None) -> tuple[RunHeader, RunCost]:
    try:
        if workflow is not None:
            header = await _newest(store, check_id(workflow, "workflow name"))
        else:
            header, _ = await run_of(store, run_id or "")
        return header, await cost_of(store, header)
    finally:
        await store.close()


async def _newest(store: Store, workflow: str) -> RunHeader:
    """The newest run of a workflow that completed."""
    await store.journal.open(create=False)
    found = await store.journal.runs(RunFilter(status=COMPLETED, workflow=workflow, limit=1))
    if not found:
        raise RunNotFound(
            f"no run of workflow {workflow!r} has completed in {store.url}",
            remedy="Let one run over a few items, then estimate from that",
        )
    return found[0]


# ---- Telling ----


def _bill(bill: Bill) -> Document:
    counts = {name: round(value, 2) for name, value in bill.told().items() if name != "usd_per_million"}
    return {**counts, "usd": bill.dollars}


def _estimate_document(header: RunHeader, scaled: Estimate, items: int) -> Document:
    return {
        "workflow": header.workflow,
        "items": items,
        "items_then": scaled.items_then,
        "fixed": _bill(scaled.fixed),
        "per_item": _bill(scaled.per_item),
        "bill": _bill(scaled.total),
    }


def _text(document: Document) -> str:
    scaled = document["estimate"]
    where = f"DynamoDB on demand and S3 Standard in {REGION}, prices of {AS_OF}"
    if scaled:
        facts = [
            ("estimate", f"{scaled['items']:,} items of workflow {scaled['workflow']}"),
            ("from", f"run {document['run_id']}, which had {scaled['items_then']:,}"),
            ("per item", f"{scaled['per_item']['write_units']:,.2f} write units"),
            ("prices", where),
        ]
        return f"{facts_text(facts)}\n{_bill_table(scaled['bill'])}"
    stored = document["stored"]
    kept = f"{size(stored['table_bytes'])} in the table, {size(stored['s3_bytes'])} in S3 before compression"
    facts = [
        ("run", document["run_id"]),
        ("prices", where),
        ("stored", f"{kept}: {dollars(stored['usd_per_month'])} USD a month"),
    ]
    rows = [
        (
            f"map {part['name']}" if part["kind"] == "map" else part["name"],
            f"{part['count']:,}",
            _number(part["write_units"]),
            _number(part["s3_puts"]),
            dollars(part["usd"]),
        )
        for part in document["parts"]
    ]
    parts = f"\n{table(_PARTS, rows)}" if rows else ""
    return f"{facts_text(facts)}\n{_bill_table(document['bill'])}{parts}"


def cost_card(found: RunCost) -> Document:
    """The bill of a run, for its page."""
    bill = found.total
    lines = [
        {
            "name": name,
            "count": f"{_number(getattr(bill, units))} units"
            if units != requests
            else _number(getattr(bill, units)),
            "price": f"{dollars(getattr(bill, units) * PRICES[units] / 1_000_000)} USD",
        }
        for name, requests, units in _LINES
    ]
    kept = f"{size(found.table_bytes)} in the table, {size(found.s3_bytes)} in S3 before compression"
    note = f"Reckoned from the records at the prices of {AS_OF} in {REGION}, without storage: {kept}."
    return {"told": f"{dollars(bill.dollars)} USD", "lines": lines, "note": note}


def _bill_table(bill: Document) -> str:
    rows = []
    for name, requests, units in _LINES:
        price = bill[units] * PRICES[units] / 1_000_000
        rows.append((name, _number(bill[requests]), _number(bill[units]), dollars(price)))
    return table(_BILL, [*rows, ("total", "", "", dollars(bill["usd"]))])


def _number(value: float) -> str:
    return f"{round(value):,}"
