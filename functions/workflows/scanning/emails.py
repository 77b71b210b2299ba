"""E-mail addresses, but not everything with an @ in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.match import Match
from functions.workflows.scanning.models import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functions.workflows.scanning.passage import Passage

_LOCAL_REACH = 64  # RFC 5321
_LOCAL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+\Z")
_LOCAL_EDGE = "'`.!#$%&*/=?^{|}~-+"  # what surrounds an address in prose and code rather than begins it
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+(?:xn--[a-z0-9-]{2,59}|[^\W\d_]{2,24})(?![\w-])", re.IGNORECASE
)

# RFC 2606 and 6761: nobody can have an address there.
_RESERVED: Final = re.compile(r"(?:^|\.)(?:example\.(?:com|net|org)|example|test|invalid|localhost|local)$")
_FILE_ENDING_LIST = "png jpg jpeg gif svg webp ico css js mjs json html htm txt xml yml yaml"
_FILE_ENDINGS: Final = frozenset(_FILE_ENDING_LIST.split())
# Message ids look like addresses; so do the peers of a remote shell.
_NOT_A_PERSON: Final = re.compile(r"(?:message-id|references|in-reply-to|content-id|cid)\b[^,;]*$")


def find_emails(passage: Passage) -> Iterator[Match]:
    """Addresses whose domain could exist, but not URL credentials, Git remotes or message ids."""
    text = passage.text
    at = text.find("@")
    while at >= 0:
        match = _address_around(passage, at)
        if match:
            yield match
        at = text.find("@", at + 1)


def _address_around(passage: Passage, at: int) -> Match | None:
    text = passage.text
    before = _LOCAL.search(text, max(0, at - _LOCAL_REACH), at)
    after = _DOMAIN.match(text, at + 1)
    if not before or not after:
        return None
    # `mailto:`, `<` and `(` stop the pattern by themselves; `name=a@b.org` is a parameter with an address.
    local = before.group().rpartition("=")[2].lstrip(_LOCAL_EDGE)
    start = at - len(local)
    domain = after.group().lower()
    if not local or local.endswith(".") or ".." in local or "/" in local:
        return None
    if _RESERVED.search(domain) or domain.rpartition(".")[2] in _FILE_ENDINGS:
        return None
    if _is_remote(text, start, after.end(), local) or _NOT_A_PERSON.search(passage.label(start)):
        return None
    return Match(Kind.EMAIL, start, after.end(), f"{local.lower()}@{domain}")


def _is_remote(text: str, start: int, end: int, local: str) -> bool:
    word = re.split(r"[\s<>\"'(\[]", text[max(0, start - 2 * _LOCAL_REACH) : start])[-1]
    if "://" in word:
        return True  # user, or user and password, of a URL
    return local == "git" or re.match(r":[~/\w]", text[end : end + 2]) is not None
