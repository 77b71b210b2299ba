"""A process that makes one large output durable, or reads it again, and says how much memory that took."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from durable_core import Context, DurableWorkflowExecutor, step, workflow


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


def most_bytes() -> int:
    """Of this program: ru_maxrss would begin with its parent's."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def main(url: str, kind: str, size: int) -> None:
    """Gives the hashes of what was made and what is read, each with the most bytes of memory until then."""
    async with DurableWorkflowExecutor(url) as executor:

        async def read(run_id: str) -> str:
            (view,) = await executor.steps(run_id)
            return digest(await view.output())

        await executor.run(one, run_id="small", kind=kind, size=50_000)
        await read("small")
        base = most_bytes()
        made = (await executor.run(one, run_id="large", kind=kind, size=size)).output
        made_bytes = most_bytes() - base
        found = [made, made_bytes, await read("large"), most_bytes() - base]
        sys.stdout.write(json.dumps(found))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
