"""Resumes a run of any of these programs by its id alone."""

from __future__ import annotations

import asyncio

from durable_core import DurableWorkflowExecutor
from tests.e2e.programs import chain, deadly, held, sharing  # noqa: F401 - so that their workflows are known
from tests.e2e.programs.witness import reported


def main(db: str, run_id: str, folder: str) -> int:
    async def run() -> object:
        async with DurableWorkflowExecutor(db_path=db) as executor:
            return (await executor.resume(run_id)).output

    return asyncio.run(reported(folder, run()))
