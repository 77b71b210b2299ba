"""Payment card numbers: issuer range, length, grouping and Luhn checksum."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.match import Match, is_other_number
from functions.workflows.scanning.models import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functions.workflows.scanning.passage import Passage

# First digits from, to (as strings of equal length) and the lengths that the issuer gives out. Visa numbers
# of 13 digits are extinct; article numbers of 13 digits that begin with 4 are not.
_ISSUERS: Final = (
    ("4", "4", (16, 19)),
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("6011", "6011", (16, 19)),
    ("644", "649", (16, 19)),
    ("65", "65", (16, 19)),
    ("300", "305", (14,)),
    ("36", "36", (14,)),
    ("38", "39", (14, 16)),
    ("3528", "3589", (16, 19)),
    ("62", "62", (16, 17, 18, 19)),
    ("5018", "5018", (16, 19)),
    ("5020", "5020", (16, 19)),
    ("5038", "5038", (16, 19)),
    ("6304", "6304", (16, 19)),
    ("6759", "6759", (16, 19)),
    ("6761", "6763", (16, 19)),
)

# Printed in every payment provider's manual; nobody's card.
_TEST_CARD_LIST = """
    4111111111111111 4242424242424242 4000056655665556 4012888888881881 4222222222222 4000000000000002
    4000000000009995 4917610000000000 4000002500003155 5555555555554444 5200828282828210
    5105105105105100 2223003122003222 2223000048400011 378282246310005 371449635398431 378734493671000
    6011111111111117 6011000990139424 6011981111111113 30569309025904 38520000023237 3056930009020004
    36227206271667 3530111333300000 3566002020360505 6200000000000005 6304000000000000 5019717010103742
    4444333322221111 5454545454545454 4000000000000077 4000000000003220
"""
_TEST_CARDS: Final = frozenset(_TEST_CARD_LIST.split())

_WANTED = re.compile(r"\b(?:card|visa|mastercard|amex|karte\w*|carte|kreditkarte\w*|pan|cc)\b")
_GROUPED = re.compile(
    r"(?<![\w.+/-])"
    r"(?:[0-9]{14,19}"
    r"|(?<![A-Za-z0-9]{2}[0-9]{2}[ -])[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1[0-9]{3}(?![0-9]))?"
    r"|[0-9]{4}([ -])[0-9]{6}\2[0-9]{4,5})"
    r"(?![\w]|-\w|[/.][0-9]| [0-9]{4}(?: [0-9]{4})+(?![0-9]))"
)


def find_cards(passage: Passage) -> Iterator[Match]:
    """Card numbers, solid or in their usual groups; not the published test numbers."""
    for found in _GROUPED.finditer(passage.text):
        for shown in (
            found.group(),
            found.group()[:19],
        ):  # the second: a security code follows in a group of its own
            digits = re.sub(r"[ -]", "", shown)
            if is_card(digits) and not is_other_number(passage.label(found.start()), _WANTED):
                yield Match(Kind.CARD, found.start(), found.start() + len(shown), digits)
                break


def is_card(digits: str) -> bool:
    """Whether digits are a card number that an issuer could have given out."""
    issued = any(
        low <= digits[: len(low)] <= high and len(digits) in lengths for low, high, lengths in _ISSUERS
    )
    return issued and digits not in _TEST_CARDS and len(set(digits)) > 2 and luhn_holds(digits)


def luhn_holds(digits: str) -> bool:
    """The Luhn check: every second digit from the right doubled, the sum a multiple of ten."""
    doubled = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[::2]) + sum(doubled[value] for value in values[1::2])) % 10 == 0
