"""What an examination of a store comes to, check by check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from durable_core.errors import DurableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

State = Literal["ok", "warn", "fail"]

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

_MOST_SKEW_MS: Final = 1_000


class Check(NamedTuple):
    """Something that was looked at.

    Attributes:
        name: Stable, such as `schema`.
        state: `ok`; `warn`: it works, and may harm; `fail`: runs can't be driven here like this.
        message: One clause, for a person.
        remedy: What to do about it; None where nothing is to be done.
    """

    name: str
    state: State
    message: str
    remedy: str | None = None


def tried(name: str, work: Callable[[], str]) -> Iterator[Check]:
    """A check that passes with what `work` tells, or fails with the error that it raises."""
    try:
        yield Check(name, OK, work())
    except DurableError as error:
        yield failed(name, error)


def failed(name: str, error: DurableError) -> Check:
    """A check that fails with an error."""
    return Check(name, FAIL, error.message, error.remedy)


def clock_check(skew_ms: int, whose: str) -> Check:
    """How far the clock here is from another one.

    Args:
        skew_ms: By how much the other one is ahead.
        whose: Such as `the server's`.
    """
    if abs(skew_ms) <= _MOST_SKEW_MS:
        return Check("clock", OK, f"{whose} clock and this one are {abs(skew_ms)} ms apart at the most")
    apart = "behind" if skew_ms > 0 else "ahead of"
    return Check(
        "clock",
        WARN,
        f"this clock is {abs(skew_ms) / 1000:.1f} s {apart} {whose}: waits end late or early",
        "Let it follow a time server (chrony, systemd-timesyncd)",
    )
