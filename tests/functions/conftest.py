"""What the tests of the functions share: one deployment for each module, its queues empty for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud import ENVIRONMENT, Cloud, aws_threads, open_clients, patient
from tests.lambda_place import Deployment
from tests.waiting import until


@pytest.fixture(scope="module")
def _deployed(moto_server: Cloud) -> Iterator[Deployment]:
    with pytest.MonkeyPatch.context() as patched, patient():
        for name, value in ENVIRONMENT.items():
            patched.setenv(name, value)
        made = Deployment(moto_server)
        yield made
        made.close()
    until(lambda: not aws_threads(), "the threads of transports to end")
    assert open_clients() == []


@pytest.fixture
def deployment(
    _deployed: Deployment, monkeypatch: pytest.MonkeyPatch, _clean_environment: None
) -> Deployment:
    """The module's deployment, with nothing in its queues, and the environment of its functions."""
    for name, value in (ENVIRONMENT | _deployed.environment).items():
        monkeypatch.setenv(name, value)
    _deployed.empty()
    return _deployed
