"""Aids for tests: of workflows, and of stores written by others.

`FakeClock` is turned by hand. `journal_contract` and `blob_contract` are the contracts of stores, as tests to
be subclassed (they need pytest). `stepped_loop` and `scheduled_journal` let a test choose in which order
things happen.
"""

from durable_core.testing.fake_clock import FakeClock

__all__ = ["FakeClock"]
