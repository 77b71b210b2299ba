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

SCHEMA_VERSION: Final = 1
_TABLES: Final = ("schema_version", "runs", "checkpoints", "segments", "events", "blobs", "blob_parts")
_OUR_NAMES: Final = (*_TABLES, "chunks", "agent_checkpoints")
# Every kind of relation, and not only those that the role may use.
_FOUND: Final = (
    "SELECT relname, relkind FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace"
    " ON pg_namespace.oid = relnamespace WHERE nspname = %s AND relname = ANY(%s)"
)
_COLUMNS: Final = (
    "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
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
    async with pool.transaction() as session:
        version = await _version(session, pool)
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


async def _version(session: Session, pool: Pool) -> int:
    """The version of our tables in the schema; 0 where there are none yet.

    Raises:
        StoreMisconfigured: The names are taken by another program, or a table is missing.
        SchemaTooNew: It is newer than what this version knows.
    """
    server = pool.server
    ((number,),) = (await session.run("SELECT current_setting('server_version_num')::bigint")).rows
    if number < OLDEST_VERSION:
        raise StoreMisconfigured(
            f"{pool.place} is PostgreSQL {number // 10000}", remedy="Use PostgreSQL 12 or newer"
        )
    found = dict((await session.run(_FOUND, (server.schema, list(_OUR_NAMES)))).rows)
    if not found:
        return 0
    version = await _recorded(session, pool) if found.get("schema_version") in ("r", b"r") else None
    if not isinstance(version, int) or version < 1:
        raise StoreMisconfigured(
            f"{pool.place} belongs to another program: it has its own {', '.join(sorted(found))}",
            remedy="Name a schema of its own for the journal: ?schema=…",
        )
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{pool.place} has schema version {version}; this durable-core knows up to {SCHEMA_VERSION}",
            remedy="Upgrade durable-core (`pip install -U durable-core`), or name another schema",
        )
    missing = [name for name in _TABLES if name not in found]
    if missing:
        raise StoreMisconfigured(
            f"{pool.place} lacks the tables {', '.join(missing)}",
            remedy="Restore them from a backup, or name another schema (?schema=…)",
        )
    return version


async def _recorded(session: Session, pool: Pool) -> object:
    name = pool.text_of("durable.schema_version")
    columns = (await session.run(_COLUMNS, (name,))).rows
    if columns != [("version",), ("applied_at",)]:
        return None
    ((version,),) = (await session.run("SELECT max(version) FROM durable.schema_version")).rows
    return version


def _lock_of(schema: str) -> int:
    """The advisory lock of a schema: for this package's migrations, in one database."""
    return int.from_bytes(sha256(f"durable-core {schema}".encode()).digest()[:8], signed=True)


def _statements(version: int) -> list[str]:
    folder = resources.files("durable_core.journal").joinpath("schema")
    text = folder.joinpath(f"postgres_{version:03d}.sql").read_text("utf-8")
    return [statement for statement in text.split(";\n") if statement.strip()]
