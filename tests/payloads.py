"""Whether anything that a test has had stored is in a log line: inputs, outputs, events, items, states.

Every value on its way to a store goes through one function of the codec, every line of ours through one
class. Here both are listened to, in every test: so each test's own values are its markers.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Final

import pytest

from durable_core import codec, log
from tests.cloud import ENVIRONMENT

SECRETS: Final = (ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], ENVIRONMENT["AWS_ACCESS_KEY_ID"])
_MOST: Final = 500  # values that are remembered, the latest ones
_PART: Final = 4_000  # characters of each
_TEXT: Final = re.compile(r'"([^"\\]{12,})"(?!:)')
_ID: Final = re.compile(r"[A-Za-z0-9._:@+=/#\[\]!-]+")


class Listener:
    """Hears of all values that are encoded, and of all lines that are logged, in this process."""

    def __init__(self) -> None:
        self._encoded: deque[str] = deque(maxlen=_MOST)
        self.lines: list[str] = []

    def listen(self, patched: pytest.MonkeyPatch) -> None:
        """From now on, until that is undone."""
        written, encoded, lines = codec._written, self._encoded, self.lines

        def heard(value: object, adapter: Any) -> str:
            stored = written(value, adapter)
            encoded.append(stored if len(stored) <= _PART else stored[:_PART])
            return stored

        class ToStderr(log._ToStderr):
            def msg(self, line: str) -> None:
                lines.append(line)
                super().msg(line)

            log = debug = info = warn = warning = error = err = critical = fatal = failure = exception = msg

        patched.setattr(codec, "_written", heard)
        patched.setattr(log, "_logger_factory", lambda *_: ToStderr())

    def leaks(self) -> list[str]:
        """What was stored or is secret, and stands in a line all the same."""
        if not self.lines:
            return []
        told = "\n".join(self.lines)
        texts = {found for one in self._encoded for found in _TEXT.findall(one) if not _ID.fullmatch(found)}
        return sorted(one for one in {*texts, *SECRETS} if one in told)
