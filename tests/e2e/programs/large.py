"""A process that makes one large output durable, or reads it again, and says how much memory that took."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from hashlib import sha256
from typing import Any

from durable_core import Context, DurableWorkflowExecutor, step, workflow
from tests.system import peak_kib


@step
def plain(kind: str, size: int) -> Any:
    data = random.Random(size).randbytes(size)
    if kind == "text":
        return data.hex()[:size]
    return {"name": "large", "data": data} if kind == "part" else data


@step
def annotated(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@workflow
async def one(ctx: Context, kind: str, size: int) -> str:
    called = ctx.step(annotated, size) if kind == "annotated" else ctx.step(plain, kind, size)
    return digest(await called)


def digest(found: Any) -> str:
    data = found["data"] if isinstance(found, dict) else found
    return sha256(data.encode() if isinstance(data, str) else data).hexdigest()


async def main(url: str, kind: str, size: int) -> None:
    """Gives the hashes of what was made and what is read, each with the most bytes of memory until then."""
    async with DurableWorkflowExecutor(url) as executor:

        async def read(run_id: str) -> str:
            (view,) = await executor.steps(run_id)
            return digest(await view.output())

        await executor.run(one, run_id="small", kind=kind, size=50_000)
        await read("small")
        base = peak_kib()
        made = (await executor.run(one, run_id="large", kind=kind, size=size)).output
        made_bytes = (peak_kib() - base) * 1024
        found = [made, made_bytes, await read("large"), (peak_kib() - base) * 1024]
        sys.stdout.write(json.dumps(found))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
