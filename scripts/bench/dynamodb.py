"""What steps cost on DynamoDB with S3: requests, write units and money, by the size of their outputs.

    python scripts/bench/dynamodb.py           a table for people: a minute or two
    python scripts/bench/dynamodb.py --json    for machines

Runs go against a moto server on this machine. Nothing here depends on its speed: requests are counted where
they are sent, and units are computed from the sizes of the items as AWS documents it. What AWS bills for is
decided by AWS; see the price list before you rely on the last column.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from durable_core import Context, DurableWorkflowExecutor, configure_logging, step, workflow
from durable_core.aws.table import table_request
from durable_core.aws.transport import Service, Transport, open_transport
from durable_core.blobs.s3 import S3Blobs
from durable_core.cost.prices import AS_OF, PRICES, REGION
from durable_core.journal.dynamodb import DynamoJournal
from durable_core.store import Store
from scripts.bench.dynamodb_units import Meter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.cost.bill import Bill

STEPS: Final = 20
SIZES: Final = {"200 B": 200, "2 KB": 2_000, "8 KB": 8_000, "64 KB": 64_000}
TABLE: Final = "runs"
BUCKET: Final = "outputs"
INLINE_BYTES: Final = 256 * 1024  # more than any of them


@step
async def work(number: int, size_bytes: int) -> bytes:
    """An output that can't be compressed."""
    return random.Random(number).randbytes(size_bytes)


@step(pure=True)
async def pure(number: int, size_bytes: int) -> bytes:
    """The same, without an effect."""
    return random.Random(number).randbytes(size_bytes)


@step(semantics="at_most_once")
async def guarded(number: int, size_bytes: int) -> bytes:
    """The same, of a step that must not run twice."""
    return random.Random(number).randbytes(size_bytes)


@workflow
async def chain(ctx: Context, kind: str, steps: int, size_bytes: int) -> None:
    """One step after the other."""
    called = {"step": work, "pure": pure, "at_most_once": guarded}[kind]
    for number in range(steps):
        await ctx.step(called, number, size_bytes)


class Metered(Transport):
    """Counts what is sent by another transport."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.meter = Meter()

    async def call(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request."""
        reply = await self._inner.call(service, operation, request)
        self.meter.count(operation, request, reply)
        return reply

    def call_now(self, service: Service, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same, blocking."""
        reply = self._inner.call_now(service, operation, request)
        self.meter.count(operation, request, reply)
        return reply

    async def close(self) -> None:
        """Closes the other."""
        await self._inner.close()

    def close_now(self) -> None:
        """Closes the other."""
        self._inner.close_now()


async def cost(transport: Transport, kind: str, size_bytes: int, inline_max_bytes: int) -> Bill:
    """What one more step costs: a run of many, less a run of none, by the number of steps."""
    bills = []
    for steps in (0, STEPS):
        metered = Metered(transport)
        journal, blobs = DynamoJournal(metered, TABLE), S3Blobs(metered, BUCKET)
        store = Store(f"dynamodb://{TABLE}", journal, blobs, inline_max_bytes)
        executor = DurableWorkflowExecutor(store=store)
        await executor.run(chain, kind=kind, steps=steps, size_bytes=size_bytes)
        bills.append(metered.meter.bill)
    return (bills[1] - bills[0]) / STEPS


async def measure(transport: Transport) -> list[dict[str, Any]]:
    """Every kind of step with every size."""
    await transport.call("dynamodb", "create_table", table_request(TABLE))
    await transport.call("s3", "create_bucket", {"Bucket": BUCKET})
    rows = []
    try:
        for kind in ("step", "pure", "at_most_once"):
            for name, size_bytes in SIZES.items():
                for place, inline_max_bytes in (("inline", INLINE_BYTES), ("spilled", 0)):
                    found = await cost(transport, kind, size_bytes, inline_max_bytes)
                    rows.append({"kind": kind, "output": name, "kept": place, **found.told()})
    finally:
        await transport.close()
    return rows


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    from moto.server import ThreadedMotoServer

    configure_logging(level="error")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        os.environ |= {"AWS_ACCESS_KEY_ID": "example", "AWS_SECRET_ACCESS_KEY": "example"}
        host, port = server.get_host_and_port()
        # Through boto3: aioboto3 doesn't go together with moto in one process.
        transport = open_transport(region=REGION, endpoint=f"http://{host}:{port}", use_async=False)
        rows = asyncio.run(measure(transport))
    finally:
        server.stop()
    if as_json:
        print(json.dumps({"region": REGION, "as_of": AS_OF, "prices": PRICES, "steps": rows}, indent=2))
        return
    print(f"per step; prices of {REGION} as of {AS_OF}, on demand, without storage\n")
    for row in ({name: name.replace("_", " ") for name in rows[0]}, *rows):
        print(
            "  ".join(f"{value if isinstance(value, str) else f'{value:.1f}':>15}" for value in row.values())
        )


if __name__ == "__main__":
    main()
