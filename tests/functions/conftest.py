"""What the tests of the functions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud import Cloud, patient
from tests.lambda_place import Deployment


@pytest.fixture
def deployment(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment of its own; its handlers leave no connection behind."""
    with patient():
        made = Deployment(cloud, monkeypatch)
        yield made
        made.close()
