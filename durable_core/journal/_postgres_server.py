"""A PostgreSQL server: how it is reached, and what its errors mean.

No message, log line or name made here has a password in it, nor the text of a URL that can't be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from durable_core.errors import (
    CorruptRecord,
    DurableError,
    JournalUnavailable,
    StoreMisconfigured,
    StoreNotFound,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGresult

    AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]
    Connection = psycopg.Connection[tuple[Any, ...]]
    Values = Sequence[object] | Mapping[str, object] | None

DEFAULT_SCHEMA: Final = "durable"
DEFAULT_CONNECTIONS: Final = 10
OLDEST_VERSION: Final = 120000
_OURS: Final = ("schema", "connections")
_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
# What the URL doesn't say. A peer that is gone without a word is noticed within half a minute.
_DEFAULTS: Final = {
    "fallback_application_name": "durable-core",
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "client_encoding": "utf8",
}
# Preparing a statement nearly halves the time of a step. It is prepared in one connection of the server, and
# behind a pooler such as PgBouncer the next transaction may go over another: there nothing is prepared.
_PREPARED_AFTER: Final = 2
_WHO: Final = "SELECT pg_backend_pid()"
_OPTIONS: Final[dict[str, Any]] = {"autocommit": True, "prepare_threshold": None}


class Answer(NamedTuple):
    """What a statement came to: its rows, and how many rows it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


@dataclass(frozen=True, slots=True)
class Server:
    """Where the tables are.

    Attributes:
        shown: The place as people may see it: a URL without user and password.
        schema: Of the tables.
        connections: The most that one process has open at once.
    """

    shown: str
    schema: str
    connections: int
    _params: dict[str, Any] = field(repr=False)

    async def connect(self) -> AsyncConnection:
        """A connection for event loops.

        Raises:
            JournalUnavailable, StoreMisconfigured, StoreNotFound: There is none to be had.
        """
        try:
            connection = await psycopg.AsyncConnection.connect(**self._params, **_OPTIONS)
        except psycopg.Error as error:
            raise refused(error, self.shown) from error
        try:
            ((pid,),) = await (await connection.execute(_WHO, binary=True)).fetchall()
            if pid == connection.info.backend_pid:  # a pooler makes one up
                connection.prepare_threshold = _PREPARED_AFTER
        except BaseException as error:
            connection.pgconn.finish()
            if isinstance(error, psycopg.Error):
                raise refused(error, self.shown) from error
            raise
        return connection

    def connect_blocking(self) -> Connection:
        """The same for threads."""
        try:
            return psycopg.connect(**self._params, **_OPTIONS)
        except psycopg.Error as error:
            raise refused(error, self.shown) from error


@lru_cache(maxsize=1024)
def text_of(query: str, schema: str) -> str:
    """A statement with the name of the schema in the place of `durable.`."""
    return query.replace(f"{DEFAULT_SCHEMA}.", f'"{schema}".')


def has_rows(result: PGresult | None) -> bool:
    """Whether a statement gave any."""
    return result is not None and result.status == ExecStatus.TUPLES_OK


def server_of(url: str) -> Server:
    """The server that a store URL names.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=…&connections=…`, with any other options
            that PostgreSQL's client library has, such as `sslmode`.

    Raises:
        UsageError: It isn't one.
    """
    place, _, query = url.partition("?")
    # An unescaped character of a password would make the rest of it a path, a query or a fragment.
    if not {"#", "\0"}.isdisjoint(url) or "@" in query or "@" in place.partition("://")[2].partition("/")[2]:
        raise _unreadable()
    options = [option.partition("=") for option in query.split("&") if option]
    own = {name: unquote(value) for name, _, value in options if name in _OURS}
    others = "&".join("".join(option) for option in options if option[0] not in _OURS)
    try:
        params = conninfo_to_dict(f"{place}?{others}")
    except (psycopg.Error, UnicodeError):
        for name, _, _ in options:
            if name not in _OURS and not _is_option(name):
                raise UsageError(
                    f"unknown option {name!r} in the store URL",
                    remedy="postgresql:// stores take schema, connections, and the options of libpq",
                ) from None
        raise _unreadable() from None  # its message may quote a part of a password
    schema = _schema_of(own)
    return Server(_shown(params, schema), schema, _connections_of(own), _DEFAULTS | params)


def _schema_of(own: dict[str, str]) -> str:
    schema = own.get("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise UsageError(
            f"schema={schema!r:.80} can't be the name of the tables' schema",
            remedy="Use up to 63 of a-z, 0-9 and _, not beginning with a digit or pg_",
        )
    return schema


def _connections_of(own: dict[str, str]) -> int:
    text = own.get("connections", str(DEFAULT_CONNECTIONS))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:6]) <= 1000:
        raise UsageError(f"connections={text!r:.80} is no number of connections", remedy="Use 1 to 1000")
    return int(text)


def _is_option(name: str) -> bool:
    try:
        conninfo_to_dict(f"postgresql:///?{quote(name)}=")
    except (psycopg.Error, UnicodeError):
        return False
    return True


def _shown(params: dict[str, Any], schema: str) -> str:
    hosts = [quote(host, safe=":[]") for host in str(params.get("host", "")).split(",")]
    ports = [f":{port}" if port else "" for port in str(params.get("port", "")).split(",")]
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    places = ",".join(map("".join, zip(hosts, ports, strict=True)))
    return f"postgresql://{places}/{quote(str(params.get('dbname', '')))}?schema={schema}"


def _unreadable() -> UsageError:
    return UsageError(
        "the postgresql:// URL can't be read",
        remedy="Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %XX for : / ? # @ % in a part",
    )


# ---- What errors mean ----

# Of a refused connection there is no code, only the server's text (which it may have translated; then it is
# JournalUnavailable).
_NOT_ADMITTED: Final = re.compile(
    r"authentication failed|role .* does not exist|no pg_hba\.conf entry|no password supplied"
    r"|permission denied for database|is not permitted to log in|certificate|server does not support SSL"
)
_NO_DATABASE: Final = re.compile(r"database .* does not exist")

_MISSING: Final = "Restore the schema from a backup, or name another one (?schema=…)"
_MEANINGS: Final[dict[str, tuple[type[DurableError], str, str]]] = {
    # An SQLSTATE or its class: the error, what happened, what to do.
    "25006": (
        JournalUnavailable,
        "takes no writes: it is a standby, or set to read only",
        "Name the primary (or several hosts, with target_session_attrs=read-write) in the URL, and resume",
    ),
    "57014": (
        JournalUnavailable,
        "cancelled a statement",
        "See statement_timeout and the server's load, and resume",
    ),
    "42501": (
        StoreMisconfigured,
        "doesn't permit it",
        "Grant this role USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on its tables (to make them:"
        " CREATE)",
    ),
    "3F000": (StoreMisconfigured, "lacks the schema", _MISSING),
    "42": (StoreMisconfigured, "doesn't have the tables that it should", _MISSING),
    "53100": (
        JournalUnavailable,
        "has no room left",
        "Free some space and resume: everything committed is safe",
    ),
    "XX001": (CorruptRecord, "has corrupt data", "Restore it from a backup"),
    "XX002": (CorruptRecord, "has a corrupt index", "REINDEX it, or restore it from a backup"),
}


def refused(error: psycopg.Error, shown: str) -> DurableError:
    """The error that a failed connection stands for."""
    text = _first_line(error)
    if _NO_DATABASE.search(text):
        return StoreNotFound(
            f"{shown} has no such database: {text}", remedy="Make it (`createdb`), or mend the URL"
        )
    if _NOT_ADMITTED.search(text):
        return StoreMisconfigured(
            f"{shown} doesn't admit us: {text}",
            remedy="Check user and password (in the store URL, PGPASSWORD or ~/.pgpass) and pg_hba.conf",
        )
    return JournalUnavailable(
        f"{shown} can't be reached: {text}", remedy="Check host and port, start the server, and resume"
    )


def translated(error: BaseException, shown: str) -> DurableError:
    """The error that a failed statement stands for.

    The server's details may quote what is stored: only the primary message is passed on.
    """
    state = getattr(error, "sqlstate", None) or ""
    if isinstance(error, UnicodeError) or (isinstance(error, psycopg.DataError) and state[:2] in ("", "22")):
        return UsageError(
            "PostgreSQL can't store a name or text: it has a NUL or a lone surrogate, or is out of range",
            remedy="Leave such characters out of ids and names",
        )
    told = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    meaning = _MEANINGS.get(state) or _MEANINGS.get(state[:2])
    if meaning is not None:
        kind, what, remedy = meaning
        return kind(f"{shown} {what}: {told}", remedy=remedy)
    if not state:
        return JournalUnavailable(
            f"the connection to {shown} was lost: {_first_line(error)}",
            remedy="See to the server and the network, and resume: everything committed is safe",
        )
    return JournalUnavailable(
        f"{shown} can't do it now: {told} ({state})",
        remedy="See to the server and resume: everything committed is safe",
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
