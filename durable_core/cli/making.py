"""`durable init`: makes a store where there is none."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from durable_core.cli import output
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, StoreUrl  # noqa: TC001 - typer reads the annotations
from durable_core.store_urls import store_url
from durable_core.stores import init_store


def init(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be made or changed.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make the store: the SQLite file, or the table and the bucket on AWS.

    What is there already, and as it has to be, isn't touched; a table of another shape is refused.

    Example: durable init --store sqlite:///runs.db
    """
    url, changes = asyncio.run(init_store(store_url(store, None, None), dry_run=dry_run))
    if as_json:
        output.write(as_document({"store": url, "dry_run": dry_run, "changes": changes}))
        return
    if not changes:
        output.write(f"{output.clean(url)}: everything is there.\n")
        return
    lines = [f"  {output.clean(change)}\n" for change in changes]
    told = "would have to be changed (dry run)" if dry_run else "changed"
    output.write(f"{output.clean(url)}: {told}:\n{''.join(lines)}")
