"""Aids for tests: of workflows, and of stores written by others.

`FakeClock` is turned by hand. `crash_points` runs a test at each crash point of a workflow; the fixtures of
the pytest plugin are in `pytest_plugin`. `journal_contract` and `blob_contract` are the contracts of stores,
as tests to be subclassed. `stepped_loop` and `scheduled_journal` let a test choose in which order things
happen, `durable_writes` is told of each write of a store, `crash_processes` kills real processes. What runs
tests needs pytest.
"""

from durable_core.testing.fake_clock import FakeClock
from durable_core.testing.marking import crash_points

__all__ = ["FakeClock", "crash_points"]
