"""What a report may show of an identifier: a mask for people, and a keyed fingerprint for machines."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Final

from functions.workflows.scanning.models import Kind

KEY_VARIABLE: Final = "SCAN_FINGERPRINT_KEY"


def mask(kind: Kind, value: str) -> str:
    """An identifier with all but what helps its owner to recognise it blotted out."""
    if kind is Kind.EMAIL:
        local, _, domain = value.partition("@")
        return f"{local[0]}***@{domain[0]}***.{domain.rpartition('.')[2]}"
    if kind is Kind.IBAN:
        return f"{value[:2]}{'*' * (len(value) - 6)}{value[-4:]}"
    shown = {Kind.CARD: 4, Kind.PHONE: 2, Kind.SSN: 2}[kind]
    return "*" * (len(value) - shown) + value[-shown:]


def fingerprint(kind: Kind, value: str, key: bytes) -> str:
    """HMAC-SHA-256 of an identifier, cut to 128 bits; empty without a key.

    Without a secret there is no fingerprint at all: all social security numbers can be hashed in minutes.
    """
    if not key:
        return ""
    return hmac.digest(key, f"{kind.value}:{value}".encode(), "sha256")[:16].hex()


def configured_key() -> bytes:
    """The key of this process, `SCAN_FINGERPRINT_KEY`; as an input of the workflow it would be stored."""
    return os.environ.get(KEY_VARIABLE, "").encode()


def key_id(key: bytes) -> str:
    """Tells two keys apart without telling either; empty without a key."""
    return hashlib.sha256(b"fingerprint key id:" + key).hexdigest()[:8] if key else ""
