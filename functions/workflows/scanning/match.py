"""A place in a passage that holds an identifier, and the labels that speak for or against it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from functions.workflows.scanning.models import Kind


class Match(NamedTuple):
    """One identifier found.

    Attributes:
        start, end: Offsets in the passage's text.
        value: The identifier in its normal form: the same one written otherwise has the same value.
    """

    kind: Kind
    start: int
    end: int
    value: str


# A number under one of these labels is something else, whatever its shape.
_OTHER_NUMBER: Final = re.compile(
    r"\b(?:order|invoice|ticket|part|sku|serial|tracking|case|article|item|batch|lot|model|version|build|commit"
    r"|hash|uuid|checksum|isbn|issn|ean|upc|doi|bestell\w*|rechnung\w*|artikel\w*|commande|facture"
    r"|timestamp|duration|offset|size|bytes|port)\b"
)


def is_other_number(label: str, wanted: re.Pattern[str]) -> bool:
    """Whether the nearest word of a label says that the number is of another sort than the one wanted."""
    against = max((word.end() for word in _OTHER_NUMBER.finditer(label)), default=-1)
    return against > max((word.end() for word in wanted.finditer(label)), default=-1)
