"""Prunes all runs that are over."""

from __future__ import annotations

import asyncio

from durable_core import DurableWorkflowExecutor


def main(db: str) -> int:
    async def prune() -> int:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            return len((await executor.prune(keep=0)).left)

    return asyncio.run(prune())
