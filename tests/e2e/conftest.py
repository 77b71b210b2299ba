"""What the end-to-end tests share: a place for runs, the same tests over every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stores import KINDS, Place, Processes


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    found = Place(request.param, tmp_path, url=url)
    yield found
    await found.close()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)
