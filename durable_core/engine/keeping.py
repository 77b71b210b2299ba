"""What a header tells whoever drives the run next: owners that never released it, and a person's decision.

That is `on_change="keep"`: decided by whoever resumes the run, and followed by the workers that go on with it
after a wait, until somebody resumes it without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from durable_core.engine.failure import as_json
from durable_core.records import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.records import RunHeader

_KEEPS: Final = "keeps"
_GONE_KEPT: Final = 50


def keeps_changed(header: RunHeader) -> bool:
    """Whether recorded outputs are used although their inputs have changed.

    Raises:
        CorruptRecord: The header can't be read.
    """
    return parse_object(header.gone, header.run_id).get(_KEEPS) is True


def gone_json(gone: Mapping[int, int | bool | None], *, keeps: bool) -> str | None:
    """A header's `gone`: of so many owners, and the decision; None if there is neither."""
    told = {str(fence): dead for fence, dead in list(gone.items())[-_GONE_KEPT:]}
    return as_json({**told, **({_KEEPS: True} if keeps else {})}) if told or keeps else None
