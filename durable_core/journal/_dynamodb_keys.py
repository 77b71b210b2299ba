"""Keys of the DynamoDB table: where each record is, in the table and in its indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict
from zlib import crc32

from durable_core.aws.table import SHARDS
from durable_core.clock import epoch_ms
from durable_core.records import ACTIVE, TOMBSTONE

if TYPE_CHECKING:
    from durable_core.records import Child

Item = dict[str, Any]

HEADER: Final = "RUN"
STEPS: Final = "STEP#"
SEGMENTS: Final = "SEG#"
EVENTS: Final = "EVENT#"
CHUNKS: Final = "CHUNK#"
LAST: Final = "\U0010ffff"
"""After every character that a key may have: DynamoDB orders keys by their UTF-8 bytes."""


def key(run_id: str, sort_key: str) -> Item:
    """The key of an item of a run."""
    return {"pk": {"S": partition(run_id)}, "sk": {"S": sort_key}}


def partition(run_id: str) -> str:
    """Where all items of a run are."""
    return f"RUN#{run_id}"


def run_of(item: Item) -> str:
    """The run that an item is of, by its key."""
    return text_of(item, "pk")[len(partition("")) :]


def step_key(step_id: str) -> str:
    """Of a step in its run."""
    return f"{STEPS}{step_id}"


def segment_key(step_id: str, chunk: int, seq: int) -> str:
    """Of a segment in its run. `!` isn't part of an id, so that no id is read as part of another."""
    return f"{log_key(step_id, chunk)}{seq:08d}"


def log_key(step_id: str, chunk: int) -> str:
    """What the keys of a chunk's segments begin with."""
    return f"{SEGMENTS}{step_id}!{chunk:08d}!"


def chunk_key(step_id: str, chunk: int) -> str:
    """Of a chunk in its run."""
    return f"{chunks_key(step_id)}{chunk:08d}"


def chunks_key(step_id: str) -> str:
    """What the keys of a map's chunks begin with."""
    return f"{CHUNKS}{step_id}!"


def event_key(name: str, seq: int) -> str:
    """Of an event in its run."""
    return f"{EVENTS}{name}!{seq:08d}"


def child_key(child: Child) -> str:
    """Of any record under a header."""
    if child.kind == "step":
        return step_key(child.name)
    if child.kind == "segment":
        return segment_key(child.name, child.chunk, child.seq)
    if child.kind == "chunk":
        return chunk_key(child.name, child.chunk)
    return event_key(child.name, child.seq)


# ---- Indexes ----


def shard_of(run_id: str) -> int:
    """The same for a run in every process."""
    return crc32(run_id.encode()) % SHARDS


def index_of(run_id: str, status: str) -> dict[str, str | int | None]:
    """Where the indexes have a run of this status: among those that are due only while it is active.

    Tombstones aren't listed, and aren't here: `grave_of` says where they are.
    """
    return {
        "status_shard": f"{status}#{shard_of(run_id)}" if status != TOMBSTONE else None,
        "due_shard": shard_of(run_id) if status in ACTIVE else None,
    }


def grave_of(run_id: str, buried_at: str) -> dict[str, int]:
    """Where `by_due` has a tombstone that nobody has looked at again: in shards of their own, by burial."""
    return {"due_shard": SHARDS + shard_of(run_id), "due_at_ms": epoch_ms(buried_at)}


OPEN_MAPS_SHARD: Final = 2 * SHARDS
"""Where `by_due` has the records of maps that workers share, while these have begun: they are few."""


# ---- For messages ----


class Names(TypedDict):
    """Run and step that an error is about."""

    run_id: str
    step_id: str | None


def names_of(item: Item) -> Names:
    """Run and step of an item by its key, which is there whatever else is damaged."""
    sort_key = text_of(item, "sk")
    step_id = None
    if sort_key.startswith(STEPS):
        step_id = sort_key[len(STEPS) :]
    elif sort_key.startswith(SEGMENTS):
        step_id = sort_key[len(SEGMENTS) :].rsplit("!", 2)[0]
    elif sort_key.startswith(CHUNKS):
        step_id = sort_key[len(CHUNKS) :].rpartition("!")[0]
    return {"run_id": run_of(item), "step_id": step_id}


def text_of(item: Item, name: str) -> str:
    """A text attribute, empty where there is none."""
    return str(item.get(name, {}).get("S", ""))
