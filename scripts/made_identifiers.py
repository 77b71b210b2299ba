"""Identifiers that nobody has, written the ways people write them; and phrases that only look like one.

Nothing here uses the detectors that are measured with it: checksums are computed anew. Numbers come from
ranges kept for fiction where there are any (555-01xx, Ofcom's and ARCEP's drama numbers).

A few identifiers are written in ways that a careful detector gives up on, because taking them would mean
taking much else: a spelled-out `(at)`, nine digits without hyphens or a label. Documents on which recall
never suffers would be the wrong ones to measure it on.
"""

from __future__ import annotations

import string
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

KINDS: Final = ("email", "phone", "iban", "card", "ssn")
_FIRST_LIST = """
anna bjorn chloe dmitri elif farid greta hugo ines jonas katya lars mina noah olga pavel rosa sven
"""
FIRST_NAMES: Final = _FIRST_LIST.split()
_LAST_LIST = """
almqvist berger castel duarte eriksen falk grimaldi horvat ivanov jansen keller lindholm moreau
novak
"""
_LAST = _LAST_LIST.split()
_DOMAINS_LIST = """
kestrel-papier.se grauwacke.de lune-et-fils.fr fenwold.co.uk tarn-ledger.io brisa-norte.es
mühlbach.at
"""
_DOMAINS = _DOMAINS_LIST.split()
_IBANS = "DE:n18 FR:n23 ES:n20 NL:a4n10 GB:a4n14 CH:n17 PL:n24 NO:n11"
_IBAN_SHAPES = dict(shape.split(":") for shape in _IBANS.split())
_CARDS = "4:16 51:16 55:16 2221:16 37:15 34:15 6011:16 3528:16"
_CARD_SHAPES = [
    (prefix, int(length)) for prefix, _, length in (card.partition(":") for card in _CARDS.split())
]
_HARD_SHARE = 0.04  # of identifiers without a label beside them


def luhn_digit(digits: str) -> str:
    """The digit that makes a card number's checksum right."""
    total = 0
    for place, char in enumerate(reversed(digits)):
        doubled = int(char) * 2 if place % 2 == 0 else int(char)
        total += doubled - 9 if doubled > 9 else doubled
    return str(-total % 10)


def iban_check(country: str, account: str) -> str:
    """The two check digits of an IBAN."""
    spelled = "".join(
        str(string.digits.find(c) if c.isdigit() else ord(c) - 55) for c in account + country + "00"
    )
    return f"{98 - int(spelled) % 97:02d}"


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices(string.digits, k=count))


def _email(rng: random.Random, labelled: bool) -> str:
    first, last = rng.choice(FIRST_NAMES), rng.choice(_LAST)
    local = rng.choice(
        (f"{first}.{last}", f"{first[0]}{last}", f"{first}_{last}", f"{first}+{last}", f"{last.title()}")
    )
    at = " (at) " if not labelled and rng.random() < _HARD_SHARE else "@"
    return f"{local}{_digits(rng, 3)}{at}{rng.choice(_DOMAINS)}"


_PHONE_TABLE = """
({area}) 555-{line}|{area}-555-{line}|{area}.555.{line}|+1 {area} 555 {line}|1-{area}-555-{line}
+44 20 7946 0{tail}|+44 (0)20 7946 0{tail}|020 7946 0{tail}|07700 900{tail}|0161 496 0{tail}
01 99 00 {pair} {pair2}|+33 1 99 00 {pair} {pair2}|01.99.00.{pair}.{pair2}|0049 30 23125 {tail}
+49 30 23125 {tail}|030/23125{tail}|(030) 23125-{tail}|+4930\u00a023125{tail}
"""
_PHONE_FORMS = [form for row in _PHONE_TABLE.strip().split("\n") for form in row.split("|")]
_LABELLED_PHONE_FORMS = ["{area}555{line}", "1{area}555{line}", "03023125{tail}", "{area} 555 {line}"]


def _phone(rng: random.Random, labelled: bool) -> str:
    area = f"{rng.randrange(2, 10)}{rng.choice('0234567')}{rng.choice('023456789')}"
    line, tail, tail4 = f"01{_digits(rng, 2)}", _digits(rng, 3), _digits(rng, 4)
    if not labelled and rng.random() < _HARD_SHARE:
        return f"{area} 555 {line}"
    forms = _PHONE_FORMS + (_LABELLED_PHONE_FORMS if labelled else [])
    return rng.choice(forms).format(area=area, line=line, tail=tail, pair=tail4[:2], pair2=tail4[2:])


def _iban(rng: random.Random, labelled: bool) -> str:
    country, shape = rng.choice(sorted(_IBAN_SHAPES.items()))
    letters = "".join(rng.choices(string.ascii_uppercase, k=4)) if shape.startswith("a4") else ""
    account = letters + _digits(rng, int(shape.rpartition("n")[2]))
    solid = country + iban_check(country, account) + account
    grouped = " ".join(solid[at : at + 4] for at in range(0, len(solid), 4))
    return rng.choice((solid, grouped, grouped, solid.lower()))


def _card(rng: random.Random, labelled: bool) -> str:
    prefix, length = rng.choice(_CARD_SHAPES)
    body = prefix + _digits(rng, length - len(prefix) - 1)
    solid = body + luhn_digit(body)
    cuts = (0, 4, 10, 15) if length == 15 else (0, 4, 8, 12, 16)
    groups = [solid[start:end] for start, end in pairwise(cuts)]
    return rng.choice((solid, " ".join(groups), "-".join(groups), "\u00a0".join(groups)))


def _ssn(rng: random.Random, labelled: bool) -> str:
    area = rng.choice([area for area in range(1, 900) if area != 666])
    parts = (f"{area:03d}", f"{rng.randrange(1, 100):02d}", f"{rng.randrange(1, 10_000):04d}")
    hard = not labelled and rng.random() < _HARD_SHARE
    return rng.choice(("-", " ", "")).join(parts) if labelled or hard else "-".join(parts)


MAKERS: Final[dict[str, Callable[[random.Random, bool], str]]] = {
    "email": _email,
    "phone": _phone,
    "iban": _iban,
    "card": _card,
    "ssn": _ssn,
}
LABELS: Final = {"email": "E-mail", "phone": "Phone", "iban": "IBAN", "card": "Card", "ssn": "SSN"}


def near_miss(rng: random.Random) -> str:
    """A phrase with something in it that looks like an identifier and is none."""
    card = _card(rng, False).replace(" ", "").replace("-", "").replace("\u00a0", "")
    iban = _iban(rng, False).upper()
    area = f"{rng.randrange(2, 10)}{rng.choice('0234567')}{rng.choice('023456789')}"
    tail = _digits(rng, 4)
    flipped = str((int(card[-1]) + rng.randrange(1, 10)) % 10)
    return rng.choice(
        (
            f"card {card[:-1]}{flipped} was mistyped",
            f"transaction {rng.choice('17890')}{_digits(rng, 15)}",
            f"test card {rng.choice(('4111 1111 1111 1111', '5555555555554444', '378282246310005'))}",
            f"counter {_digits(rng, 21)} overflowed",
            f"account {iban[:2]}{(int(iban[2:4]) + 1) % 100:02d}{iban[4:]} was refused",
            f"reference XZ{_digits(rng, 20)}",
            f"SSN {rng.choice(('000', '666', '9' + tail[:2]))}-{tail[:2]}-{tail} is impossible",
            f"SSN {rng.randrange(100, 600)}-00-{_digits(rng, 4)} is impossible",
            f"order no. {rng.randrange(100, 600)}-{rng.randrange(10, 99)}-{rng.randrange(1000, 9999)}",
            f"host {rng.randrange(10, 255)}.{rng.randrange(100, 255)}.{rng.randrange(100, 255)}.{tail[1:]}",
            f"part number {area}-555-{_digits(rng, 4)}",
            f"ISBN 978-{rng.randrange(10)}-{_digits(rng, 3)}-{_digits(rng, 5)}-{rng.randrange(10)}",
            f"timestamp 17{_digits(rng, 11)}",
            f"id {'-'.join(rng.randbytes(n).hex() for n in (4, 2, 2, 2, 6))}",
            f"digest {rng.randbytes(32).hex()}",
            f"value {rng.random() * 1000:.14f}",
            f"version {rng.randrange(20)}.{rng.randrange(400, 999)}.{rng.randrange(400, 999)}.{tail}",
            "rows 01 02 03 04 05 are empty",
            f"write to {rng.choice(FIRST_NAMES)}@example.com as a placeholder",
            f"clone git@{rng.choice(('forge', 'code'))}.tarn-ledger.io:{rng.choice(_LAST)}/ledger.git",
            f"see https://{rng.choice(FIRST_NAMES)}:secret@intranet.fenwold.co.uk/wiki",
            f"picture {rng.choice(_LAST)}@2x.png",
            f"package ledger@{rng.randrange(9)}.{rng.randrange(20)}.0",
            f"founded in {rng.randrange(1900, 2015)}, renamed on {rng.randrange(1, 28)} March 19{tail[:2]}",
            f"code {_digits(rng, 9)} at the gate",
            f"000{_digits(rng, 10)} units",
        )
    )
