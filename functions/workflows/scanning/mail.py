"""E-mails: each header, body and readable attachment becomes a passage with its transfer encoding undone."""

from __future__ import annotations

import email
import html
from email.header import decode_header, make_header
from typing import TYPE_CHECKING, Final

from functions.workflows.scanning.passage import Format, Passage

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message

# Written by machines for machines; what looks like an address or a number in there is neither.
_MACHINE_HEADER_LIST = """
    message-id references in-reply-to content-id received dkim-signature arc-seal arc-message-signature
    arc-authentication-results authentication-results content-type mime-version content-transfer-
    encoding
"""
_MACHINE_HEADERS: Final = frozenset(_MACHINE_HEADER_LIST.split())
_READABLE: Final = frozenset(
    {"application/json", "application/xml", "application/x-ndjson", "application/csv"}
)
_FORMS: Final[dict[str, Format]] = {"text/csv": "csv", "application/csv": "csv", "application/json": "json"}


def mail_passages(content: bytes, form_of: Callable[[str], Format]) -> list[Passage]:
    """The passages of an e-mail, attached e-mails included; parts that aren't text are left out.

    Args:
        content: The message as it was sent.
        form_of: Tells an attachment's format from its name.
    """
    # The legacy policy on purpose: the modern one parses addresses and fails on the headers that spam is made
    # of.
    message = email.message_from_bytes(content)
    passages: list[Passage] = []
    bodies = 0
    for index, part in enumerate(message.walk()):
        if index == 0 or part.get_content_type() != part.get_default_type() or part["From"]:
            passages += _headers(part)
        payload = _text(part)
        if payload is None:
            continue
        filename = _header_text(part.get_filename() or "")
        if filename:
            form = _FORMS.get(part.get_content_type()) or form_of(filename)
            passages.append(Passage(payload, part=f"attachment {filename}", form=form))
        else:
            bodies += 1
            passages.append(Passage(payload, part=f"body {bodies}"))
    return passages


def _headers(part: Message) -> list[Passage]:
    return [
        Passage(_header_text(str(value)), part=f"header {name}")
        for name, value in part.raw_items()
        if name.lower() not in _MACHINE_HEADERS and not name.lower().startswith(("x-", "content-"))
    ]


def _header_text(value: str) -> str:
    """A header with its folding and encoded words undone; as it stands if they are broken."""
    unfolded = value.replace("\r", "").replace("\n", "")
    try:
        return str(make_header(decode_header(unfolded)))
    except (LookupError, ValueError):  # an unknown character set, or bytes that aren't in it
        return unfolded


def _text(part: Message) -> str | None:
    """The text of a leaf; None for what is no text."""
    kind = part.get_content_type()
    if part.is_multipart() or not (kind.startswith("text/") or kind in _READABLE):
        return None
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return None
    try:
        text = payload.decode(part.get_content_charset("utf-8"), "replace")
    except LookupError:
        text = payload.decode("utf-8", "replace")
    return html.unescape(text) if kind == "text/html" else text
