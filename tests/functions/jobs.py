"""Workflows that the functions under test know."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from durable_core import Context, step, workflow


class Decision(BaseModel):
    ok: bool


@step
async def double(number: int) -> int:
    return number * 2


@step
async def slow(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return name


@workflow
async def doubled(ctx: Context, numbers: list[int]) -> list[int]:
    return [await ctx.step(double, number) for number in numbers]


@workflow
async def approved(ctx: Context, wait_s: float = 3600) -> bool:
    decision = await ctx.wait_for_event("approval", type=Decision, timeout=timedelta(seconds=wait_s))
    return decision.ok


@workflow
async def sleepy(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@workflow
async def many_slow(ctx: Context, count: int, seconds: float) -> int:
    for n in range(count):
        await ctx.step(slow, f"s{n}", seconds)
    return count
