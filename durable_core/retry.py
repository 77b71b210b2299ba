"""When a step that raised is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from durable_core.arguments import check_count, check_number
from durable_core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a step is tried again after its body raised.

    A crash of the process uses up none of these attempts: crashes have their own limit.

    Args:
        max_attempts: Bodies in all, the first one included.
        initial_delay_s: Seconds before the second attempt.
        factor: What each further delay is multiplied with.
        max_delay_s: The longest delay.
        jitter: The share of each delay that is drawn at random, from 0 (none) to 1.
        retry_on: Only these exceptions are tried again.
        give_up_on: These never are.

    Raises:
        UsageError: A value is out of range.
    """

    max_attempts: int = 3
    initial_delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.1
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        """Refuses what can't be meant."""
        check_count("max_attempts", self.max_attempts)
        check_number("initial_delay_s", self.initial_delay_s, least=0)
        check_number("factor", self.factor, least=1)
        check_number("max_delay_s", self.max_delay_s, least=0)
        check_number("jitter", self.jitter, least=0, most=1)
        for name in ("retry_on", "give_up_on"):
            kinds = getattr(self, name)
            classes = isinstance(kinds, tuple) and all(isinstance(kind, type) for kind in kinds)
            if not classes or not all(issubclass(kind, Exception) for kind in kinds):
                raise UsageError(f"{name}={kinds!r} must be a tuple of exception classes")

    def delay_s(self, errors: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after the given number of attempts that raised (1, 2, …)."""
        try:
            full = min(self.max_delay_s, self.initial_delay_s * float(self.factor) ** (errors - 1))
        except OverflowError:
            full = self.max_delay_s
        share = (rng or random).random()
        return full * (1 - self.jitter * share)

    def allows(self, error: BaseException, errors: int) -> bool:
        """Whether an attempt is left after `errors` attempts raised, the last of them this error."""
        wanted = isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)
        return errors < self.max_attempts and (wanted or isinstance(error, RetryLater))


NO_RETRY = Retry(max_attempts=1)


class RetryLater(Exception):
    """Raised by a step that knows when it should be tried again; counts as an attempt that raised.

    Args:
        after_s: Seconds to wait, instead of the delay of the step's `Retry`.
        message: Why.
    """

    def __init__(self, after_s: float, message: str = "") -> None:
        check_number("after_s", after_s, least=0)
        super().__init__(message or f"asked to be tried again in {after_s:g} s")
        self.after_s = float(after_s)
