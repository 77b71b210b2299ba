"""`python -m durable_core.cli`: the same as `durable`."""

from __future__ import annotations

import sys

from durable_core.cli import main

sys.exit(main())
