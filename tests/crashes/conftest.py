"""What is tried here only where it can be."""

from __future__ import annotations

import sys

# Only Linux tells every write and sync of a process without rights of its own: by strace.
collect_ignore = [] if sys.platform == "linux" else ["test_power_cut.py"]
