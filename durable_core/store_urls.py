"""What a store is named by: arguments, the environment, a URL. Nothing is opened here.

A message never shows what could be credentials; those of AWS have no place in a URL at all.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, unquote_to_bytes, urlencode, urlsplit

from durable_core.errors import UsageError
from durable_core.store import DEFAULT_INLINE_MAX_BYTES

STORE_VARIABLE: Final = "DURABLE_STORE"
DEFAULT_URL: Final = "sqlite:///durable.db"
BACKENDS: Final = ("sqlite", "postgres", "dynamodb", "s3", "memory")
_SCHEMES: Final = {"postgres": "postgresql", "s3": "dynamodb"}
_KNOWN: Final = ("sqlite", "memory", "postgresql", "dynamodb")
_SHOWN: Final = 120

_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]+){1,3}-[0-9]{1,2}")
_PREFIX: Final = re.compile(r"([A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*/)*")
_LONGEST_PREFIX: Final = 512  # a key has 1,024 bytes at the most, and a ref up to 330
_MOST_INLINE_BYTES: Final = 256 * 1024  # an item has 400 KB, and more in it than the output


@dataclass(frozen=True, slots=True)
class MemoryUrl:
    """`memory://`."""


@dataclass(frozen=True, slots=True)
class SqliteUrl:
    """`sqlite:///PATH`.

    Attributes:
        path: As the file system has it.
    """

    path: str


@dataclass(frozen=True, slots=True)
class DynamoUrl:
    """`dynamodb://TABLE?bucket=BUCKET`.

    Attributes:
        region: Of AWS; None: as the environment or the profile says.
        endpoint: A URL instead of those of AWS.
        prefix: Of the keys in the bucket; empty, or with a slash at its end.
        inline_max_bytes: The most stored bytes of an output that stay in the table.
    """

    table: str
    bucket: str
    region: str | None = None
    endpoint: str | None = None
    prefix: str = ""
    inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES

    @property
    def url(self) -> str:
        """The URL again, without what is so anyway."""
        options = {
            "bucket": self.bucket,
            "region": self.region,
            "endpoint": self.endpoint,
            "prefix": self.prefix,
            "inline_max_bytes": None
            if self.inline_max_bytes == DEFAULT_INLINE_MAX_BYTES
            else self.inline_max_bytes,
        }
        given = {name: value for name, value in options.items() if value not in (None, "")}
        return f"dynamodb://{self.table}?{urlencode(given, safe=':/')}"


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """`postgresql://…`: left to the client library, which knows its options.

    Attributes:
        url: With credentials.
    """

    url: str = field(repr=False)


def store_url(store: str | None, db_path: str | os.PathLike[str] | None, backend: str | None) -> str:
    """The URL that the executor's arguments and the environment name.

    Args:
        store: A URL, which says everything.
        db_path: A SQLite file.
        backend: sqlite, postgres, dynamodb, s3 or memory.

    Raises:
        UsageError: They contradict each other, or don't name a store.
    """
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}", remedy=f"Use one of: {', '.join(BACKENDS)}")
    if store is not None:
        if not isinstance(store, str):
            raise UsageError(
                f"store= is a {type(store).__name__}",
                remedy="Give a URL such as sqlite:///runs.db, or a Store",
            )
        if db_path is not None:
            raise UsageError("both store= and db_path= name a store", remedy="Give one of them")
        return _of_backend(store, backend)
    if db_path is not None:
        if backend not in (None, "sqlite"):
            raise UsageError(
                f"db_path= belongs to SQLite, not to backend={backend!r}",
                remedy=f"Name the store by URL: store= or {STORE_VARIABLE}",
            )
        if not isinstance(db_path, str | bytes | os.PathLike):
            raise UsageError(f"db_path= is a {type(db_path).__name__}", remedy="Give a path")
        if not os.fspath(db_path):
            raise UsageError("db_path is empty", remedy="Name a file")
        return f"sqlite:///{quote(bytes_of(db_path))}"
    found = os.environ.get(STORE_VARIABLE)
    if found:
        return _of_backend(found, backend)
    if backend == "memory":
        return "memory://"
    if backend not in (None, "sqlite"):
        raise UsageError(
            f"backend={backend!r} needs to know where",
            remedy=f"Name the store by URL: store= or {STORE_VARIABLE}",
        )
    return DEFAULT_URL


def parse_store_url(url: str) -> MemoryUrl | SqliteUrl | PostgresUrl | DynamoUrl:
    """What a URL names.

    Raises:
        UsageError: It names no store, or has unknown, repeated or impossible options.
    """
    scheme = _scheme(url)
    if scheme == "postgresql":
        return PostgresUrl(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets that belong to no address
        raise UsageError(f"{shown(url)!r} can't be read as a URL: {error}", remedy="Check it") from error
    if parts.fragment:
        raise UsageError(
            f"{shown(url)!r} has a part after #, which means nothing here", remedy="Write # in a name as %23"
        )
    if scheme == "dynamodb":
        return _dynamo_url(url, parts)
    if parts.query:
        name = parts.query.partition("=")[0]
        raise UsageError(f"unknown option {name!r} in the store URL", remedy=f"{scheme} stores take none")
    if scheme == "memory":
        return MemoryUrl()
    path = os.fsdecode(unquote_to_bytes(bytes_of(parts.path)))[1:] if not parts.netloc else ""
    if not path:
        raise UsageError(
            f"{shown(url)!r} names no SQLite file",
            remedy="Write sqlite:///runs.db, or sqlite:////absolute/path/runs.db",
        )
    return SqliteUrl(path)


def shown(url: str) -> str:
    """A URL that was refused, for people: without what could be user and password, and not without end."""
    scheme, mark, rest = url.partition("://")
    text = f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else url.rpartition("@")[2]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _dynamo_url(url: str, parts: SplitResult) -> DynamoUrl:
    if "@" in parts.netloc:
        raise UsageError(
            "credentials have no place in a store URL",
            remedy="Leave them to the environment, the profile or the role of this process",
        )
    table = unquote(parts.netloc)
    if not _TABLE.fullmatch(table) or parts.path not in ("", "/"):
        raise UsageError(
            f"{shown(url)!r} names no DynamoDB table",
            remedy="Write dynamodb://TABLE?bucket=BUCKET; a table's name has 3-255 of [A-Za-z0-9_.-]",
        )
    given = _options(parts.query)
    inline = given.pop("inline_max_bytes", str(DEFAULT_INLINE_MAX_BYTES))
    if not re.fullmatch("[0-9]{1,7}", inline) or int(inline) > _MOST_INLINE_BYTES:
        raise _wrong("inline_max_bytes", f"a number from 0 to {_MOST_INLINE_BYTES}")
    prefix = given.pop("prefix", "")
    prefix = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
    if not _PREFIX.fullmatch(prefix) or len(prefix) > _LONGEST_PREFIX:
        raise _wrong("prefix", "the beginning of a key, such as tenant-a/")
    if not given.get("bucket"):
        raise UsageError(
            f"dynamodb://{table} names no bucket, which large outputs go to",
            remedy=f"Write dynamodb://{table}?bucket=BUCKET; `durable init` makes both",
        )
    if not _BUCKET.fullmatch(given["bucket"]):
        raise _wrong("bucket", "the name of a bucket of S3: 3-63 of [a-z0-9.-]")
    if "region" in given and not _REGION.fullmatch(given["region"]):
        raise _wrong("region", "a region of AWS, such as eu-central-1")
    if "endpoint" in given:
        _check_endpoint(given["endpoint"])
    return DynamoUrl(table=table, prefix=prefix, inline_max_bytes=int(inline), **given)


def _options(query: str) -> dict[str, str]:
    known = ("bucket", "region", "endpoint", "prefix", "inline_max_bytes")
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise UsageError(
                f"unknown option {name[:_SHOWN]!r} in the store URL",
                remedy=f"dynamodb stores take {', '.join(known)}",
            )
        if name in given:
            raise UsageError(f"the store URL has the option {name!r} twice", remedy="Give it once")
        given[name] = value
    return given


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        fits = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
        fits = fits and not (parts.query or parts.fragment or "@" in endpoint)
    except ValueError:  # a port that is none
        fits = False
    if not fits:
        raise _wrong("endpoint", "the URL of a server, without credentials")


def _wrong(option: str, wanted: str) -> UsageError:
    """The value isn't shown: what is in the wrong place could be anything."""
    return UsageError(
        f"the option {option!r} of the store URL is not {wanted}",
        remedy="Write dynamodb://TABLE?bucket=BUCKET&region=eu-central-1",
    )


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    """The name as the file system has it: it needn't be UTF-8."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as error:
        raise no_name(os.fspath(path), error.reason) from error


def no_name(path: str, reason: str) -> UsageError:
    """The error for a path that no file can have."""
    name = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    return UsageError(f"{name!r} can't be the name of a SQLite file: {reason}", remedy="Name another file")


def _of_backend(url: str, backend: str | None) -> str:
    scheme = _scheme(url)
    if backend is not None and _SCHEMES.get(backend, backend) != scheme:
        raise UsageError(
            f"the store URL is of {scheme}, backend= says {backend!r}", remedy="Leave backend= out"
        )
    return url


def _scheme(url: str) -> str:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in _KNOWN:
        raise UsageError(
            f"{scheme or shown(url)!r} is no store URL",
            remedy="Use sqlite:///file.db, memory://, postgresql://… or dynamodb://TABLE?bucket=BUCKET",
        )
    return scheme
