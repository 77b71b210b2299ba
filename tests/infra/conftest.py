"""The template, as it is in the repository, for tests to look at and to break."""

from __future__ import annotations

from typing import Any

import pytest

from durable_core.local.template import read_template
from tests.artefacts import ROOT


@pytest.fixture
def template() -> dict[str, Any]:
    """Read anew for each test, which may change it."""
    return read_template(ROOT / "template.yaml")
