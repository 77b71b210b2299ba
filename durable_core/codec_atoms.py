"""Values without parts that JSON lacks: how each is written under a tag, and read back.

A tag is `{"$": name, "v": payload}`. Writers trust their argument, which has been dispatched on its exact
type; readers trust nothing: whatever is wrong with a payload raises one of `MALFORMED`.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from hashlib import sha256
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import NoneType
from typing import TYPE_CHECKING, Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import SecretBytes, SecretStr
from pydantic_core import TzInfo

from durable_core.errors import UnknownType

if TYPE_CHECKING:
    from collections.abc import Callable

MALFORMED: Final = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError)

# Python refuses to print integers over a limit that users may lower to 640 digits: longer ones travel in hex.
BIG_INT: Final = 10**600

_MERGING = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_BETWEEN = re.compile(r"(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_HEX = re.compile(r"-?[0-9a-f]+")
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_EPOCH_FREE = timedelta(microseconds=1)


class Refused(Exception):
    """A value can't be stored; the path is collected while the walk unwinds.

    Attributes:
        final: True where no annotation can help: too deep, or changed while it was read.
    """

    def __init__(self, message: str, *, remedy: str | None = None, final: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.final = final
        self.pieces: list[str] = []
        self.holders: list[int] = []

    def inside(self, holder: object, piece: str) -> None:
        """Note that the refused value was found in `holder`, at `piece`."""
        self.pieces.append(piece)
        self.holders.append(id(holder))


def tag(name: str, payload: object) -> dict[str, object]:
    """A tagged value."""
    return {"$": name, "v": payload}


def lower_none(value: None) -> None:
    """None and nothing else."""
    return value


def lower_bool(value: bool) -> bool:
    """JSON has both."""
    return value


def lower_int(value: int) -> object:
    """A JSON number, in hex where it is too long to print."""
    return value if -BIG_INT < value < BIG_INT else tag("int", f"{value:x}")


def lower_float(value: float) -> object:
    """A JSON number; NaN and the infinities by name."""
    return value if value - value == 0 else tag("float", "nan" if value != value else f"{value}")


def lower_text(value: str) -> object:
    """A JSON string; in pieces where a reader would merge two lone surrogates into one character."""
    if value.isascii() or not _MERGING.search(value):
        return value
    return tag("str", _BETWEEN.split(value))


def lower_bytes(value: bytes) -> object:
    """Base64."""
    return tag("bytes", base64.b64encode(value).decode("ascii"))


def _lower_zone(zone: tzinfo) -> list[object]:
    if type(zone) is ZoneInfo and zone.key is not None:
        return ["zone", zone.key]
    offset = zone.utcoffset(None) if type(zone) is timezone or type(zone) is TzInfo else None
    if offset is not None:
        micros = offset // _EPOCH_FREE
        if type(zone) is TzInfo:
            return ["pydantic", micros // 1_000_000]
        name = zone.tzname(None) or ""
        return (
            ["offset", micros]
            if name == timezone(offset).tzname(None)
            else ["offset", micros, lower_text(name)]
        )
    raise Refused(
        f"a time zone of type {_named(type(zone))} can't be stored",
        remedy="Use datetime.timezone or zoneinfo.ZoneInfo with a key",
    )


def _lower_moment(name: str, value: datetime | time) -> object:
    zone = value.tzinfo
    if value.fold == 0 and (zone is None or zone is UTC):
        return tag(name, value.isoformat())
    bare = value.replace(tzinfo=None, fold=0).isoformat()
    return tag(name, [bare, value.fold, None if zone is None else _lower_zone(zone)])


def _lower_timedelta(value: timedelta) -> object:
    return tag("timedelta", [value.days, value.seconds, value.microseconds])


def _lower_decimal(value: Decimal) -> object:
    # The exponent's letter follows the caller's decimal context; the stored form mustn't.
    return tag("Decimal", str(value).replace("e", "E"))


def _lower_secret(name: str, clear: bytes) -> object:
    return tag(name, sha256(clear).hexdigest())


ATOMS: Final[dict[type, Callable[..., object]]] = {
    NoneType: lower_none,
    bool: lower_bool,
    int: lower_int,
    float: lower_float,
    str: lower_text,
    bytes: lower_bytes,
    datetime: lambda value: _lower_moment("datetime", value),
    date: lambda value: tag("date", value.isoformat()),
    time: lambda value: _lower_moment("time", value),
    timedelta: _lower_timedelta,
    Decimal: _lower_decimal,
    UUID: lambda value: tag("UUID", str(value)),
    type(Path()): lambda value: tag("Path", lower_text(str(value))),
    PurePosixPath: lambda value: tag("PurePosixPath", lower_text(str(value))),
    PureWindowsPath: lambda value: tag("PureWindowsPath", lower_text(str(value))),
}

# Only hashed, never stored: a digest can't be turned back.
SECRETS: Final[dict[type, Callable[..., object]]] = {
    SecretStr: lambda value: _lower_secret(
        "SecretStr", value.get_secret_value().encode("utf-8", "surrogatepass")
    ),
    SecretBytes: lambda value: _lower_secret("SecretBytes", value.get_secret_value()),
}


def text(payload: object) -> str:
    """The payload, if it is a string."""
    if type(payload) is not str:
        raise TypeError("not a string")
    return payload


def items(payload: object) -> list[object]:
    """The payload, if it is a list."""
    if type(payload) is not list:
        raise TypeError("not a list")
    return payload


def whole(payload: object) -> int:
    """The payload, if it is an integer."""
    if type(payload) is not int:
        raise TypeError("not an integer")
    return payload


def _restore_int(payload: object) -> int:
    if not _HEX.fullmatch(text(payload)):
        raise ValueError("not hexadecimal")
    return int(text(payload), 16)


def _restore_float(payload: object) -> float:
    return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[text(payload)]


def _restore_decimal(payload: object) -> Decimal:
    found = Decimal(text(payload))
    if found.is_nan() and "nan" not in text(payload).lower():
        # With its trap off, the caller's context turns malformed text into NaN.
        raise ValueError("not a decimal number")
    return found


def _restore_zone(payload: object) -> tzinfo | None:
    if payload is None:
        return None
    kind, detail, *name = items(payload)
    if kind == "offset":
        offset = timedelta(microseconds=whole(detail))
        return timezone(offset, text(name[0])) if name else timezone(offset)
    if kind == "pydantic":
        return TzInfo(whole(detail))
    if kind != "zone" or not _ZONE_KEY.fullmatch(text(detail)):
        raise ValueError("not a time zone")
    try:
        return ZoneInfo(text(detail))
    except (ZoneInfoNotFoundError, OSError) as error:
        raise UnknownType(
            f"the stored time zone {detail!r} is not known on this machine",
            remedy="Install the package tzdata",
        ) from error


def _restore_datetime(payload: object) -> datetime:
    if type(payload) is str:
        return datetime.fromisoformat(payload)
    bare, fold, zone = items(payload)
    return datetime.fromisoformat(text(bare)).replace(tzinfo=_restore_zone(zone), fold=whole(fold))


def _restore_time(payload: object) -> time:
    if type(payload) is str:
        return time.fromisoformat(payload)
    bare, fold, zone = items(payload)
    return time.fromisoformat(text(bare)).replace(tzinfo=_restore_zone(zone), fold=whole(fold))


def _restore_timedelta(payload: object) -> timedelta:
    days, seconds, micros = items(payload)
    return timedelta(whole(days), whole(seconds), whole(micros))


RESTORE_ATOMS: Final[dict[str, Callable[[object], object]]] = {
    "int": _restore_int,
    "float": _restore_float,
    "str": lambda payload: "".join(map(text, items(payload))),
    # Not base64.b64decode: it copies the text first, and there may be 140 MB of it.
    "bytes": lambda payload: binascii.a2b_base64(text(payload), strict_mode=True),
    "datetime": _restore_datetime,
    "date": lambda payload: date.fromisoformat(text(payload)),
    "time": _restore_time,
    "timedelta": _restore_timedelta,
    "Decimal": _restore_decimal,
    "UUID": lambda payload: UUID(text(payload)),
    "Path": lambda payload: Path(text(payload)),
    "PurePosixPath": lambda payload: PurePosixPath(text(payload)),
    "PureWindowsPath": lambda payload: PureWindowsPath(text(payload)),
}


def _named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
