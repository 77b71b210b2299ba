"""The tables of the PostgreSQL journal: made and migrated by whoever comes first, while others wait."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING, Final

from durable_core.clock import SystemClock, rfc3339
from durable_core.errors import SchemaTooNew, StoreMisconfigured, StoreNotFound
from durable_core.journal._postgres_server import OLDEST_VERSION

if TYPE_CHECKING:
    from durable_core.journal._postgres_pool import Pool, Session

SCHEMA_VERSION: Final = 4
_TABLES: Final = ("schema_version", "runs", "checkpoints", "segments", "events", "blobs", "blob_parts")
_OUR_NAMES: Final = (*_TABLES, "chunks", "agent_checkpoints")
# One row: the server's version, which of our names are taken, and the columns of `schema_version`.
_FOUND: Final = (
    "SELECT current_setting('server_version_num')::bigint,"
    " ARRAY(SELECT relname::text FROM pg_catalog.pg_class WHERE relnamespace = space.oid"
    " AND relname = ANY(%(names)s) ORDER BY relname),"
    " ARRAY(SELECT attname::text FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_class"
    " ON pg_class.oid = attrelid WHERE relnamespace = space.oid AND relname = 'schema_version'"
    " AND relkind = 'r' AND attnum > 0 AND NOT attisdropped ORDER BY attnum)"
    " FROM (VALUES (1)) AS one LEFT JOIN pg_catalog.pg_namespace AS space ON nspname = %(schema)s"
)


async def prepare(pool: Pool, *, create: bool) -> None:
    """Makes the schema or migrates it.

    Args:
        pool: The connections.
        create: Whether one is made where there is none.

    Raises:
        StoreNotFound: There is none, and none is to be made.
        StoreMisconfigured: Its names belong to another program, a table is missing, or the role may not.
        SchemaTooNew: A newer version of this package made it.
        JournalUnavailable: The server can't be reached.
    """
    version = await _version(pool, pool)
    if version == 0 and not create:
        raise StoreNotFound(
            f"there are no tables in {pool.place}",
            remedy="Check the store's URL; `durable run` and `durable init` make them",
        )
    if version < SCHEMA_VERSION:
        async with pool.transaction() as session:
            await _migrate(session, pool)


async def _migrate(session: Session, pool: Pool) -> None:
    """What is missing, in one transaction.

    A   lock ── version 0 ── tables ── version 1 ── commit
    B             lock ─▶ waits ─────────────────────▶ version 1: nothing to do
    """
    schema = pool.server.schema
    await session.run("SELECT pg_advisory_xact_lock(%s)", (_lock_of(schema),))
    version = await _version(session, pool)
    if version == 0:
        if not (await session.run("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))).rows:
            await session.run(f'CREATE SCHEMA "{schema}"')
        await session.run(
            "CREATE TABLE durable.schema_version"
            " (version bigint NOT NULL PRIMARY KEY, applied_at text NOT NULL)"
        )
    for step in range(version + 1, SCHEMA_VERSION + 1):
        for statement in _statements(step):
            await session.run(statement)
        applied_at = rfc3339(SystemClock().now_ms())
        await session.run("INSERT INTO durable.schema_version VALUES (%s, %s)", (step, applied_at))


async def _version(asked: Pool | Session, pool: Pool) -> int:
    """The version of our tables in the schema; 0 where there are none yet.

    Raises:
        StoreMisconfigured: The names are taken by another program, or a table is missing.
        SchemaTooNew: It is newer than what this version knows.
    """
    values = {"schema": pool.server.schema, "names": list(_OUR_NAMES)}
    ((server_version, taken, columns),) = (await asked.run(_FOUND, values)).rows
    if server_version < OLDEST_VERSION:
        raise StoreMisconfigured(
            f"{pool.place} is PostgreSQL {server_version // 10000}", remedy="Use PostgreSQL 12 or newer"
        )
    if not taken:
        return 0
    version = None
    if columns == ["version", "applied_at"]:
        ((version,),) = (await asked.run("SELECT max(version) FROM durable.schema_version")).rows
    if not isinstance(version, int) or version < 1:
        raise StoreMisconfigured(
            f"{pool.place} belongs to another program: it has its own {', '.join(taken)}",
            remedy="Name a schema of its own for the journal: ?schema=…",
        )
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{pool.place} has schema version {version}; this durable-core knows up to {SCHEMA_VERSION}",
            remedy="Upgrade durable-core (`pip install -U durable-core`), or name another schema",
        )
    missing = [name for name in _TABLES if name not in taken]
    if missing:
        raise StoreMisconfigured(
            f"{pool.place} lacks the tables {', '.join(missing)}",
            remedy="Restore them from a backup, or name another schema (?schema=…)",
        )
    return version


def _lock_of(schema: str) -> int:
    """The advisory lock of a schema: for this package's migrations, in one database."""
    return int.from_bytes(sha256(f"durable-core {schema}".encode()).digest()[:8], signed=True)


def _statements(version: int) -> list[str]:
    folder = resources.files("durable_core.journal").joinpath("schema")
    text = folder.joinpath(f"postgres_{version:03d}.sql").read_text("utf-8")
    return [statement for statement in text.split(";\n") if statement.strip()]
