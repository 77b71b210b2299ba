"""Examining a PostgreSQL database. What is tried is rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from durable_core.errors import DurableError
from durable_core.health import FAIL, OK, WARN, Check, clock_check, failed, tried
from durable_core.journal._postgres_blocking import BlockingConnection
from durable_core.journal._postgres_schema import SCHEMA_VERSION
from durable_core.journal._postgres_server import OLDEST_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.clock import Clock
    from durable_core.journal._postgres_server import Server

_ABOUT: Final = (
    "SELECT current_setting('server_version'), current_setting('server_version_num')::bigint,"
    " pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('synchronous_commit'),"
    " current_setting('max_connections')::bigint, (SELECT count(*) FROM pg_stat_activity),"
    " floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
)
_TABLES: Final = ("runs", "checkpoints", "segments", "events", "blobs", "blob_parts")
_MAY: Final = (
    "SELECT name, privilege FROM unnest(%s::text[]) AS name,"
    " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege"
    " WHERE NOT has_table_privilege(format('%%I.%%I', %s::text, name), privilege)"
)
_PROBE: Final = (
    "INSERT INTO durable.runs"
    " (run_id, workflow, input_hash, status, fence, base_fence, created_at, updated_at)"
    " VALUES (' ', '', '', 'PRUNING', 0, 0, '', '')"
)


def examine(server: Server, clock: Clock) -> Iterator[Check]:
    """All checks of a database, one after the other; blocking."""
    yield Check("driver", OK, f"psycopg {psycopg.__version__}")
    connection = BlockingConnection(server)
    try:
        before_ms = clock.now_ms()
        ((version, number, standby, read_only, commit, most, used, now_ms),) = connection.run(_ABOUT).rows
        here_ms = (before_ms + clock.now_ms()) // 2
        took_ms = clock.now_ms() - before_ms
        yield Check("store", OK, f"{server.shown} answers in {took_ms} ms, with the connecting")
        yield _version(version, number)
        yield clock_check(now_ms - here_ms, "the server's")
        yield _writes(standby=standby, read_only=read_only == "on")
        yield _durable(commit)
        yield _room(server.connections, most - used)
        yield from _of_schema(server, connection)
    except DurableError as error:
        yield failed("store", error)
    finally:
        connection.close()


def _version(version: str, number: int) -> Check:
    if number < OLDEST_VERSION:
        return Check("server", FAIL, f"PostgreSQL {version}", "Use PostgreSQL 12 or newer")
    return Check("server", OK, f"PostgreSQL {version}")


def _writes(*, standby: bool, read_only: bool) -> Check:
    if not standby and not read_only:
        return Check("writes", OK, "the server takes writes")
    told = "the server is a standby" if standby else "the server's transactions are read-only"
    return Check("writes", FAIL, told, "Name the primary, or add target_session_attrs=read-write to the URL")


def _durable(commit: str) -> Check:
    if commit != "off":
        return Check("synchronous_commit", OK, f"it is {commit}")
    return Check(
        "synchronous_commit",
        WARN,
        "it is off: a crash of the server loses what was committed last",
        "Leave it on, at least for this role: ALTER ROLE … SET synchronous_commit = on",
    )


def _room(wanted: int, free: int) -> Check:
    if free >= wanted:
        return Check("connections", OK, f"{free} are free, and a process takes up to {wanted}")
    return Check(
        "connections",
        WARN,
        f"{free} are free, and a process takes up to {wanted}",
        "Raise max_connections of the server, or lower ?connections= in the URL",
    )


def _of_schema(server: Server, connection: BlockingConnection) -> Iterator[Check]:
    known = "SELECT to_regclass(format('%%I.%%I', %s::text, 'schema_version')) IS NOT NULL"
    if connection.run(known, (server.schema,)).rows != [(True,)]:
        told = f"there are no tables in the schema {server.schema}"
        yield Check("schema", FAIL, told, "Check the store's URL; `durable run` and `durable init` make them")
        return
    ((version,),) = connection.run("SELECT max(version) FROM durable.schema_version").rows
    if version is None or version > SCHEMA_VERSION:
        yield Check(
            "schema", FAIL, f"its version is {version}", "Upgrade durable-core, or name another schema"
        )
        return
    yield Check("schema", OK, f"version {version}" + (", older" if version < SCHEMA_VERSION else ""))
    lacks = connection.run(_MAY, (list(_TABLES), server.schema)).rows
    if lacks:
        told = ", ".join(f"{privilege} on {name}" for name, privilege in lacks[:8])
        yield Check(
            "permissions", FAIL, f"the role lacks {told}", "Grant it, or connect as the tables' owner"
        )
        return
    yield Check("permissions", OK, "the role may read and write all tables")
    yield from tried("write", lambda: _written(connection))


def _written(connection: BlockingConnection) -> str:
    connection.run("BEGIN")
    try:
        connection.run(_PROBE)
    finally:
        connection.run("ROLLBACK")
    return "a record was put and taken back"
