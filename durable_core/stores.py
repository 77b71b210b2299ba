"""The only place that knows concrete stores: from a URL to a journal and a blob store."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from durable_core.blobs.filesystem import FilesystemBlobs
from durable_core.blobs.memory import MemoryBlobs
from durable_core.blobs.sql import SqlBlobs
from durable_core.checkpoints.memory import MemoryCheckpoints
from durable_core.checkpoints.sqlite import SqliteCheckpoints
from durable_core.clock import SystemClock
from durable_core.errors import StoreNotFound, UsageError
from durable_core.health import WARN, Check
from durable_core.journal._sqlite_health import examine as examine_sqlite
from durable_core.journal.memory import MemoryJournal
from durable_core.journal.sqlite import SqliteJournal
from durable_core.store import Store
from durable_core.store_urls import DynamoUrl, MemoryUrl, PostgresUrl, no_name, parse_store_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from durable_core.aws.transport import Transport
    from durable_core.clock import Clock

_LONGEST_SUFFIX: Final = "-journal"  # of the files that SQLite and the blob store put beside it
_UNUSABLE: Final = (errno.ENAMETOOLONG, errno.ELOOP)


def open_store(
    url: str, clock: Clock | None = None, *, transport: Transport | None = None, read_only: bool = False
) -> Store:
    """The store that a URL names; nothing is connected yet.

    Args:
        url: `sqlite:///file.db` (relative), `sqlite:////abs/file.db`, `postgresql://…`,
            `dynamodb://TABLE?bucket=BUCKET`, or `memory://`.
        clock: What leases are judged by; when None, the store's own if it has one, else the machine's.
        transport: What requests to AWS go through; one of its own when None.
        read_only: Whether a file is opened for reading alone.

    Raises:
        UsageError: The URL names no store, or has options that can't be meant.
    """
    named = parse_store_url(url)
    if isinstance(named, PostgresUrl):
        return _postgres_store(named, clock)
    if isinstance(named, MemoryUrl):
        memory = MemoryJournal(clock)
        return Store("memory://", memory, MemoryBlobs(), checkpoints=MemoryCheckpoints(memory))
    if isinstance(named, DynamoUrl):
        return _dynamo_store(named, clock, transport)
    journal = _sqlite_journal(named.path, clock, read_only=read_only)
    blobs = FilesystemBlobs(Path(f"{journal.path}.blobs"))
    return Store(f"sqlite:///{named.path}", journal, blobs, checkpoints=SqliteCheckpoints(journal.path))


def examine_store(url: str) -> Iterator[Check]:
    """Looks at what a store needs, check by check; blocking. What is tried is taken back.

    Args:
        url: As for `open_store`.

    Raises:
        UsageError: The URL names no store, or its client isn't installed.
    """
    named, clock = parse_store_url(url), SystemClock()
    if isinstance(named, MemoryUrl):
        yield Check("store", WARN, "memory:// is gone with its process", "Name a store that lasts")
    elif isinstance(named, PostgresUrl):
        open_store(url)  # whether its client can be imported
        from durable_core.journal._postgres_health import examine as examine_postgres
        from durable_core.journal._postgres_server import server_of

        yield from examine_postgres(server_of(named.url), clock)
    elif isinstance(named, DynamoUrl):
        from durable_core.aws.health import examine as examine_aws
        from durable_core.aws.transport import named_endpoint, open_transport

        plain_http = (named_endpoint("s3", named.endpoint) or "").lower().startswith("http://")
        transport = open_transport(region=named.region, endpoint=named.endpoint)
        try:
            yield from examine_aws(
                transport,
                named.table,
                named.bucket,
                prefix=named.prefix,
                tls_only=not plain_http,
                clock=clock,
            )
        finally:
            transport.close_now()
    else:
        yield from examine_sqlite(_sqlite_journal(named.path, None, read_only=True).path, clock)


class Made(NamedTuple):
    """What making a store came to.

    Attributes:
        url: Of the store.
        changes: That were needed, for people.
    """

    url: str
    changes: list[str]


async def init_store(url: str, *, dry_run: bool = False) -> Made:
    """Makes the store that a URL names, or what it lacks; what is there isn't touched.

    Args:
        url: As for `open_store`.
        dry_run: Whether it only looks.

    Raises:
        DurableError: It can't be made, or is there and can't be used.
    """
    named = parse_store_url(url)
    if isinstance(named, DynamoUrl):
        return Made(named.url, await asyncio.to_thread(_provision, named, dry_run))
    store = open_store(url)
    try:
        try:
            await store.journal.open(create=False)
        except StoreNotFound:
            if not dry_run:
                await store.journal.open()
            return Made(store.url, [f"make {store.url}"])
        return Made(store.url, [])
    finally:
        await store.journal.close()


def _provision(named: DynamoUrl, dry_run: bool) -> list[str]:
    from durable_core.aws.provision import provision
    from durable_core.aws.transport import named_endpoint, open_transport

    plain_http = (named_endpoint("s3", named.endpoint) or "").lower().startswith("http://")
    transport = open_transport(region=named.region, endpoint=named.endpoint)
    try:
        return provision(
            transport,
            named.table,
            named.bucket,
            prefix=named.prefix,
            region=named.region,
            tls_only=not plain_http,  # or the store itself would be refused
            dry_run=dry_run,
        )
    finally:
        transport.close_now()


def _postgres_store(named: PostgresUrl, clock: Clock | None) -> Store:
    """Imported only here: its client is an extra."""
    try:
        from durable_core.checkpoints.postgres import PostgresCheckpoints
        from durable_core.journal._postgres_pool import Pool
        from durable_core.journal._postgres_server import server_of
        from durable_core.journal.postgres import PostgresJournal
    except ImportError as error:
        raise UsageError(
            f"postgresql:// stores need psycopg, which can't be imported: {error}",
            remedy="pip install 'durable-core[postgres]'",
        ) from error
    pool = Pool(server_of(named.url))
    return Store(
        pool.place, PostgresJournal(pool, clock), SqlBlobs(pool), checkpoints=PostgresCheckpoints(pool)
    )


def _dynamo_store(named: DynamoUrl, clock: Clock | None, transport: Transport | None) -> Store:
    """Table and bucket behind one transport."""
    from durable_core.aws.transport import open_transport
    from durable_core.blobs.s3 import S3Blobs
    from durable_core.checkpoints.dynamodb import DynamoCheckpoints
    from durable_core.journal.dynamodb import DynamoJournal

    transport = transport or open_transport(region=named.region, endpoint=named.endpoint)
    return Store(
        named.url,
        DynamoJournal(transport, named.table, clock=clock),
        S3Blobs(transport, named.bucket, named.prefix),
        named.inline_max_bytes,
        DynamoCheckpoints(transport, named.table),
    )


def _sqlite_journal(path: str, clock: Clock | None, *, read_only: bool) -> SqliteJournal:
    """Of a file that can have this name; whether it may be opened is seen when it is."""
    try:
        journal = SqliteJournal(Path(path), clock, read_only=read_only)
    except (ValueError, RuntimeError, OSError) as error:  # a null byte, a lone surrogate; a loop of links
        raise no_name(path, str(error)) from error
    try:
        os.lstat(f"{journal.path}{_LONGEST_SUFFIX}")
    except OSError as error:
        if error.errno in _UNUSABLE:
            raise no_name(path, error.strerror or str(error)) from error
    return journal
