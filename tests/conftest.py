"""What all tests share: nothing of the machine or of an earlier run leaks into them."""

from __future__ import annotations

import os
import signal

import pytest

# A shell that starts the tests in the background has Ctrl-C ignored, and children inherit that:
# they are to be stopped by it all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not decide what a test sees."""
    for name in list(os.environ):
        if name.startswith(("DURABLE_", "AWS_")):
            monkeypatch.delenv(name)
