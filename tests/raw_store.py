"""The rows and blobs of a store as they lie there: for tests that damage them behind the journal's back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg

from durable_core.journal._items import attribute, chunk_item
from durable_core.journal._memory_rows import MemoryRows
from durable_core.records import Chunk, Event, RunHeader, Segment, StepRecord
from tests.aws_place import AwsPlace
from tests.stores import Place

Row = dict[str, Any]
KEYS: Final = {
    "header": ("run_id",),
    "step": ("run_id", "step_id"),
    "segment": ("run_id", "step_id", "chunk", "seq"),
    "event": ("run_id", "name", "seq"),
    "chunk": ("run_id", "step_id", "chunk"),
}
TABLES: Final = {
    "header": "runs", "step": "checkpoints", "segment": "segments", "event": "events", "chunk": "chunks",
}  # fmt: skip
RECORDS: Final[dict[str, type[Any]]] = {
    "header": RunHeader, "step": StepRecord, "segment": Segment, "event": Event, "chunk": Chunk,
}  # fmt: skip
COLUMNS: Final = {
    kind: tuple(made.__dataclass_fields__ if made is RunHeader else made._fields)
    for kind, made in RECORDS.items()
}


class RawStore:
    """Reads and writes rows by kind, without conditions and checks; and undoes what it wrote."""

    def __init__(self) -> None:
        self._touched: dict[tuple[str, tuple[object, ...]], Row] = {}
        self._blobs: set[str] = set()
        self._known: dict[str, list[Row]] = {}

    def rows(self, kind: str) -> list[Row]:
        """All of a kind, by key."""
        if kind not in self._known:
            self._known[kind] = self._rows(kind)
        return self._known[kind]

    def row(self, kind: str, **columns: object) -> Row:
        """The one with these columns."""
        (found,) = (row for row in self.rows(kind) if all(row[name] == columns[name] for name in columns))
        return found

    def put(self, kind: str, row: Row) -> None:
        """In the place of the one with its key."""
        self._touched[kind, _key(kind, row)] = row
        self._known.pop(kind, None)
        self._put(kind, row)

    def new_chunk(self, chunk: Chunk) -> Row:
        """The row of a chunk that isn't there yet."""
        return chunk._asdict()

    def delete(self, kind: str, row: Row) -> None:
        """Takes one away."""
        self._touched[kind, _key(kind, row)] = row
        self._known.pop(kind, None)
        self._delete(kind, row)

    def put_blob(self, ref: str, data: bytes | None) -> None:
        """Other bytes under a name, or none."""
        self._blobs.add(ref)
        self._put_blob(ref, data)

    def snapshot(self) -> dict[str, list[Row]]:
        """All rows as they are now."""
        self._known = {}
        return {kind: self.rows(kind) for kind in KEYS}

    def undo(self, snapshot: dict[str, list[Row]], blobs: dict[str, bytes]) -> None:
        """What was written, as it was."""
        for (kind, key), written in self._touched.items():
            before = [row for row in snapshot[kind] if _key(kind, row) == key]
            if before:
                self._put(kind, before[0])
            else:
                self._delete(kind, written)
        for ref in self._blobs:
            self._put_blob(ref, blobs.get(ref))
        self._touched, self._blobs, self._known = {}, set(), dict(snapshot)

    def _rows(self, kind: str) -> list[Row]:
        raise NotImplementedError

    def _put(self, kind: str, row: Row) -> None:
        raise NotImplementedError

    def _delete(self, kind: str, row: Row) -> None:
        raise NotImplementedError

    def _put_blob(self, ref: str, data: bytes | None) -> None:
        raise NotImplementedError


def _key(kind: str, row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in KEYS[kind])


class _Memory(RawStore):
    def __init__(self, rows: MemoryRows, blobs: dict[str, Any]) -> None:
        super().__init__()
        self._tables: dict[str, dict[Any, Any]] = {
            "header": rows.headers, "step": rows.records, "segment": rows.logs, "event": rows.letters,
            "chunk": rows.claims,
        }  # fmt: skip
        self._held = blobs

    def _rows(self, kind: str) -> list[Row]:
        return [
            {name: getattr(one, name) for name in COLUMNS[kind]}
            for _, one in sorted(self._tables[kind].items())
        ]

    def _put(self, kind: str, row: Row) -> None:
        self._tables[kind][self._place(kind, row)] = RECORDS[kind](**row)

    def _delete(self, kind: str, row: Row) -> None:
        self._tables[kind].pop(self._place(kind, row), None)

    def _put_blob(self, ref: str, data: bytes | None) -> None:
        if data is None:
            self._held.pop(ref, None)
        else:
            self._held[ref] = (data, 0.0)

    def _place(self, kind: str, row: Row) -> object:
        key = _key(kind, row)
        return key[0] if kind == "header" else key


class _Sqlite(RawStore):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _rows(self, kind: str) -> list[Row]:
        with closing(sqlite3.connect(self._path)) as file:
            file.row_factory = sqlite3.Row
            order = ", ".join(KEYS[kind])
            return [dict(row) for row in file.execute(f"SELECT * FROM {TABLES[kind]} ORDER BY {order}")]

    def _put(self, kind: str, row: Row) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._run(f"INSERT OR REPLACE INTO {TABLES[kind]} ({names}) VALUES ({marks})", *row.values())

    def _delete(self, kind: str, row: Row) -> None:
        where = " AND ".join(f"{name} = ?" for name in KEYS[kind])
        self._run(f"DELETE FROM {TABLES[kind]} WHERE {where}", *(row[name] for name in KEYS[kind]))

    def _put_blob(self, ref: str, data: bytes | None) -> None:
        path = Path(f"{self._path}.blobs") / ref
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)

    def _run(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self._path)) as file, file:
            file.execute(statement, values)


class _Postgres(RawStore):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._schema = parse_qs(urlsplit(url).query)["schema"][0]
        self._url = urlsplit(url)._replace(query="").geturl()

    def _rows(self, kind: str) -> list[Row]:
        order = ", ".join(KEYS[kind])
        with psycopg.connect(self._url) as server:
            found = server.execute(f"SELECT * FROM {self._schema}.{TABLES[kind]} ORDER BY {order}".encode())
            names = [one.name for one in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found]

    def _put(self, kind: str, row: Row) -> None:
        names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
        changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in row)
        self._run(
            f"INSERT INTO {self._schema}.{TABLES[kind]} ({names}) VALUES ({marks})"
            f" ON CONFLICT ({', '.join(KEYS[kind])}) DO UPDATE SET {changed}",
            *row.values(),
        )

    def _delete(self, kind: str, row: Row) -> None:
        where = " AND ".join(f"{name} = %s" for name in KEYS[kind])
        self._run(
            f"DELETE FROM {self._schema}.{TABLES[kind]} WHERE {where}", *(row[name] for name in KEYS[kind])
        )

    def _put_blob(self, ref: str, data: bytes | None) -> None:
        self._run(f"DELETE FROM {self._schema}.blobs WHERE ref = %s", ref)
        if data is not None:
            self._run(f"INSERT INTO {self._schema}.blobs (ref, size) VALUES (%s, %s)", ref, len(data))
            self._run(
                f"INSERT INTO {self._schema}.blob_parts (ref, part, data) VALUES (%s, 0, %s)", ref, data
            )

    def _run(self, statement: str, *values: object) -> None:
        with psycopg.connect(self._url) as server:
            server.execute(statement.encode(), values)


_PREFIXES: Final = {"RUN": "header", "STEP": "step", "SEG": "segment", "EVENT": "event", "CHUNK": "chunk"}


class _Dynamo(RawStore):
    """Rows have what their items have; what is None is left out there."""

    def __init__(self, aws: AwsPlace) -> None:
        super().__init__()
        self._aws = aws

    def _rows(self, kind: str) -> list[Row]:
        every = dict.fromkeys(COLUMNS[kind])
        return [
            every | {name: _plain(given) for name, given in item.items()}
            for item in sorted(self._aws.items(), key=lambda one: (one["pk"]["S"], one["sk"]["S"]))
            if _PREFIXES.get(item["sk"]["S"].partition("#")[0]) == kind
        ]

    def _put(self, kind: str, row: Row) -> None:
        self._aws.write([{name: attribute(value) for name, value in row.items() if value is not None}])

    def _delete(self, kind: str, row: Row) -> None:
        key = {name: attribute(row[name]) for name in ("pk", "sk")}
        self._aws.plain.call_now("dynamodb", "delete_item", {"TableName": self._aws.table, "Key": key})

    def new_chunk(self, chunk: Chunk) -> Row:
        return {name: _plain(given) for name, given in chunk_item(chunk).items()}

    def _put_blob(self, ref: str, data: bytes | None) -> None:
        there = {"Bucket": self._aws.bucket, "Key": f"{self._aws.prefix}{ref}"}
        if data is None:
            self._aws.plain.call_now("s3", "delete_object", there)
        else:
            self._aws.plain.call_now("s3", "put_object", {**there, "Body": data})


def _plain(given: dict[str, Any]) -> Any:
    ((kind, value),) = given.items()
    return int(value) if kind == "N" else value


def raw(place: Place, aws: AwsPlace | None = None) -> RawStore:
    """What lies under a place."""
    aws = aws or getattr(place.opens, "__self__", None)
    if aws is not None:
        return _Dynamo(aws)
    store: Any = place.store()
    if place.kind == "memory":
        return _Memory(store.journal, store.blobs.held)
    return _Sqlite(place.folder / "runs.db") if place.kind == "sqlite" else _Postgres(place.url)
