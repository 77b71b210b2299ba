"""The checkpointer over every store: what is saved, what is loaded, what goes, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel

from durable_core import (
    AsyncCheckpointer,
    Checkpointer,
    CheckpointingConfig,
    CheckpointNotFound,
    CorruptRecord,
    Inputs,
    MissingBlob,
    StateNotSerializable,
    UsageError,
    checkpointed,
    failed_saves,
    get_checkpointer,
    save_checkpoint_if_enabled,
)
from durable_core.blobs.base import SESSIONS
from durable_core.checkpoints import spilled
from durable_core.checkpoints.base import CheckpointRecord
from durable_core.checkpoints.checkpoint import METADATA_MAX_BYTES
from durable_core.checkpoints.memory import MemoryCheckpoints
from durable_core.errors import InvalidId, JournalUnavailable, UnknownType
from durable_core.store import Store
from durable_core.stores import open_store
from durable_core.testing.fake_clock import FakeClock
from tests.odd_values import ODD_VALUES, identical, values
from tests.stores import KINDS, Place

ON = CheckpointingConfig(enabled=True)
KEEP_ALL = CheckpointingConfig(enabled=True, retention_per_session=0)
S = "session-1"


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    opened = Place(request.param, tmp_path, url=url).store()
    yield opened
    asyncio.run(opened.close())


@pytest.fixture
def every_store(tmp_path: Path, postgres_url: str) -> Iterator[list[Store]]:
    urls = {"postgres": postgres_url}
    opened = [Place(kind, tmp_path, url=urls.get(kind)).store() for kind in KINDS]
    yield opened
    for store in opened:
        asyncio.run(store.close())


@pytest.fixture
def checkpointer(store: Store) -> Checkpointer:
    return get_checkpointer(ON, store)


def steps(checkpointer: Checkpointer, session_id: str = S) -> list[str]:
    """What is kept, oldest first."""
    return [one.step_id for one in reversed(checkpointer.list(session_id, limit=10_000))]


class Named(BaseModel):
    name: str


def save_all(checkpointer: Checkpointer, *names: str, agent_id: str = "a") -> None:
    for name in names:
        checkpointer.save(S, agent_id, name, {"step": name})


# ---- What comes back ----


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=values)
def test_any_state_comes_back_equal_and_of_the_same_types_from_the_same_bytes(
    every_store: list[Store], state: object
) -> None:
    for store in every_store:
        checkpointer = get_checkpointer(ON, store)
        saved = [checkpointer.save(S, "a", "s", state) for _ in range(2)]
        loaded = checkpointer.load_latest(S)
        assert loaded is not None
        assert identical(loaded.state, state)
        assert all(one is not None and identical(one.state, state) for one in saved)
        first, second = checkpointer.kept.page(S, limit=2, with_state=True)
        assert first[5:9] == second[5:9]  # format, size, hash and metadata
        assert first.state == second.state
        assert first.size_bytes == loaded.size_bytes


@pytest.mark.parametrize("padding", [0, 4000])
def test_odd_values_come_back_small_and_compressed(checkpointer: Checkpointer, padding: int) -> None:
    for name, value in ODD_VALUES.items():
        state = {"value": value, "list": [value, value], "padding": "x" * padding}
        saved = checkpointer.save(S, "a", "s", state)
        loaded = checkpointer.load_latest(S)
        assert loaded is not None
        assert saved is not None
        assert identical(loaded.state, state), name
        assert loaded.format == saved.format == ("json+gzip" if loaded.size_bytes >= 2048 else "json")


@pytest.mark.parametrize("size", [2000, 2047, 2048, 2049, 1_000_000])
def test_a_state_is_compressed_from_2_kib_on(checkpointer: Checkpointer, size: int) -> None:
    checkpointer.save(S, "a", "s", "x" * (size - 2))
    loaded = checkpointer.load_latest(S)
    assert loaded is not None
    assert (loaded.format, loaded.size_bytes) == ("json+gzip" if size >= 2048 else "json", size)
    assert loaded.state == "x" * (size - 2)


def test_a_checkpoint_tells_whose_it_is_and_when_it_was_saved(store: Store) -> None:
    clock = FakeClock()
    with Checkpointer(ON, store, clock=clock) as checkpointer:
        saved = checkpointer.save(S, "analyst", "weigh", {"n": 1}, {"tries": 2, "cost": Decimal("0.10")})
        loaded = checkpointer.load_latest(S)
    assert loaded is not None
    assert saved is not None
    assert (loaded.session_id, loaded.agent_id, loaded.step_id, loaded.seq) == (S, "analyst", "weigh", 1)
    assert loaded.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert loaded.created_at.tzinfo is not None
    assert loaded.metadata == {"tries": 2, "cost": Decimal("0.10")}
    assert loaded.id == saved.id
    assert loaded.inputs is None
    assert "'n'" not in repr(loaded)  # a state may hold secrets, and reprs end up in logs


def test_what_is_saved_is_the_state_at_that_moment(checkpointer: Checkpointer) -> None:
    state = {"items": [1]}
    saved = checkpointer.save(S, "a", "s", state)
    state["items"].append(2)
    loaded = checkpointer.load_latest(S)
    assert saved is not None
    assert loaded is not None
    assert saved.state == loaded.state == {"items": [1]}


def test_what_is_not_there_is_none_or_empty(checkpointer: Checkpointer) -> None:
    save_all(checkpointer, "x")
    assert checkpointer.load_latest("other") is None
    assert checkpointer.load_latest(S, "other") is None
    assert checkpointer.load_by_step(S, "other") is None
    assert checkpointer.list("other") == []
    assert checkpointer.stats("other").checkpoints == 0


# ---- Order ----


def test_the_latest_is_what_was_saved_last_whatever_clocks_and_names_say(store: Store) -> None:
    clock = FakeClock()
    checkpointer = Checkpointer(ON, store, clock=clock)
    save_all(checkpointer, "2")
    clock.set_wall(clock.now_ms() - 3_600_000)
    save_all(checkpointer, "10", agent_id="b")
    save_all(checkpointer, "9")
    latest, of_agent = checkpointer.load_latest(S), checkpointer.load_latest(S, "b")
    assert latest is not None
    assert of_agent is not None
    assert (latest.step_id, of_agent.step_id) == ("9", "10")
    assert steps(checkpointer) == ["2", "10", "9"]


def test_saving_a_step_again_keeps_both_and_gives_the_newer(checkpointer: Checkpointer) -> None:
    checkpointer.save(S, "a", "x", 1)
    checkpointer.save(S, "a", "y", 2)
    checkpointer.save(S, "a", "x", 3)
    found = checkpointer.load_by_step(S, "x")
    assert found is not None
    assert found.state == 3
    assert [one.state for one in checkpointer.list(S)] == [3, 2, 1]


def test_a_list_is_read_in_pages_and_by_agent(checkpointer: Checkpointer) -> None:
    for number in range(5):
        checkpointer.save(S, "odd" if number % 2 else "even", str(number), number)
    page = checkpointer.list(S, limit=2)
    assert [one.state for one in page] == [4, 3]
    assert [one.state for one in checkpointer.list(S, limit=2, before=page[-1].seq)] == [2, 1]
    assert [one.state for one in checkpointer.list(S, agent_id="odd")] == [3, 1]
    with pytest.raises(UsageError, match="limit"):
        checkpointer.list(S, limit=0)


# ---- Settings ----


def test_disabled_nothing_is_written(store: Store) -> None:
    checkpointer = get_checkpointer(CheckpointingConfig(), store)
    assert checkpointer.save(S, "a", "x", object()) is None
    assert checkpointer.load_latest(S) is None
    enabled = get_checkpointer(ON, store)
    save_all(enabled, "1", "2", "3")
    assert checkpointer.prune(S, 1).removed == 0
    with pytest.raises(UsageError, match="disabled"):
        checkpointer.resume_from(S, "1")
    assert steps(enabled) == ["1", "2", "3"]


def test_a_session_can_be_deleted_also_while_checkpointing_is_disabled(store: Store) -> None:
    save_all(get_checkpointer(ON, store), *map(str, range(250)))
    assert get_checkpointer(CheckpointingConfig(), store).delete_session(S) == 50
    assert get_checkpointer(ON, store).load_latest(S) is None


@pytest.mark.parametrize(("retention", "left"), [(3, ["8", "9", "10"]), (1, ["10"]), (0, None), (50, None)])
def test_each_save_prunes_what_is_more_than_is_to_be_kept(
    store: Store, retention: int, left: list[str] | None
) -> None:
    config = CheckpointingConfig(enabled=True, retention_per_session=retention)
    checkpointer = get_checkpointer(config, store)
    save_all(checkpointer, *(str(number) for number in range(1, 11)))
    assert steps(checkpointer) == (left or [str(number) for number in range(1, 11)])


def test_pruning_keeps_the_newest_of_every_agent(checkpointer: Checkpointer) -> None:
    save_all(checkpointer, "a1", "a2", agent_id="early")
    save_all(checkpointer, "b1", "b2", "b3", agent_id="late")
    would = checkpointer.prune(S, 1, dry_run=True)
    assert steps(checkpointer) == ["a1", "a2", "b1", "b2", "b3"]
    did = checkpointer.prune(S, 1)
    assert did == would
    assert (did.removed, did.kept) == (3, 2)
    assert steps(checkpointer) == ["a2", "b3"]
    assert checkpointer.prune(S, 1).removed == 0


def test_pruning_to_0_keeps_all_and_without_a_number_what_the_settings_say(store: Store) -> None:
    save_all(get_checkpointer(KEEP_ALL, store), *map(str, range(8)))
    assert get_checkpointer(ON, store).prune(S, 0).removed == 0
    assert (
        get_checkpointer(CheckpointingConfig(enabled=True, retention_per_session=2), store).prune(S).removed
        == 6
    )
    with pytest.raises(UsageError, match="keep"):
        get_checkpointer(ON, store).prune(S, -1)


def test_pruning_that_fails_does_not_fail_the_save(store: Store) -> None:
    class Sticky(MemoryCheckpoints):
        def remove(self, places: Sequence[Any]) -> int:
            raise JournalUnavailable("locked")

    sticky = Store(store.url, store.journal, store.blobs, checkpoints=Sticky())
    checkpointer = get_checkpointer(CheckpointingConfig(enabled=True, retention_per_session=1), sticky)
    save_all(checkpointer, "1", "2")
    assert steps(checkpointer) == ["1", "2"]
    with pytest.raises(JournalUnavailable):
        checkpointer.prune(S)


# ---- Spilled states ----


@pytest.fixture
def spilling(store: Store) -> Checkpointer:
    assert store.checkpoints is not None
    store.checkpoints.inline_max_bytes = 100
    return get_checkpointer(CheckpointingConfig(enabled=True, retention_per_session=2), store)


def blobs_of(checkpointer: Checkpointer, session_id: str = S, older_than_s: float = 0) -> list[str]:
    async def listed() -> list[str]:
        found = checkpointer.store.blobs.refs(session_id, older_than_s=older_than_s, of=SESSIONS)
        return [ref async for ref in found]

    return asyncio.run(listed())


def test_a_state_too_large_for_a_record_is_kept_in_a_blob_and_goes_with_it(spilling: Checkpointer) -> None:
    for number in range(3):
        spilling.save(S, "a", str(number), [number, *(f"{n * 7919 % 1000:03}" for n in range(400))])
    found = spilling.load_latest(S)
    assert found is not None
    assert found.state[:2] == [2, "000"]
    assert [one.state[0] for one in spilling.list(S)] == [2, 1]
    assert len(blobs_of(spilling)) == 2
    assert spilling.delete_session(S) == 2
    assert blobs_of(spilling) == []


def test_a_blob_that_is_gone_is_an_error_and_hides_no_other_checkpoint(spilling: Checkpointer) -> None:
    spilling.save(S, "a", "small", 1)
    spilling.save(S, "a", "large", list(range(2000)))
    asyncio.run(spilling.store.blobs.delete(blobs_of(spilling)[0]))
    with pytest.raises(MissingBlob, match=S):
        spilling.load_latest(S)
    large, small = spilling.list(S)
    assert small.state == 1
    with pytest.raises(MissingBlob):
        _ = large.state


def test_a_checkpoint_that_is_pruned_while_it_is_loaded_is_not_there(spilling: Checkpointer) -> None:
    spilling.save(S, "a", "x", list(range(2000)))
    kept = spilling.kept

    class Pruning(MemoryCheckpoints):
        def of_step(self, session_id: str, step_id: str) -> CheckpointRecord | None:
            found = kept.of_step(session_id, step_id)
            spilling.delete_session(session_id)  # by another process, right after the look
            return found

    reading = get_checkpointer(
        ON, Store("x", spilling.store.journal, spilling.store.blobs, checkpoints=Pruning())
    )
    assert reading.load_by_step(S, "x") is None


def test_an_explicit_prune_sweeps_what_killed_saves_have_left(
    spilling: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilling.save(S, "a", "x", list(range(2000)))
    record = spilling.kept.latest(S)
    assert record is not None
    orphan = spilled.SpilledStates(spilling.store.blobs).put(record._replace(id="killed", state=b"1234"))
    spilling.prune(S, 5)
    assert len(blobs_of(spilling)) == 2  # too young: its record may be on its way
    monkeypatch.setattr(spilled, "ORPHAN_AGE_S", 0)
    spilling.prune(S, 5)
    assert orphan.state_ref not in blobs_of(spilling)
    assert len(blobs_of(spilling)) == 1


async def test_spilled_states_are_saved_and_loaded_inside_a_running_loop_too(spilling: Checkpointer) -> None:
    spilling.save(S, "a", "x", list(range(2000)))
    found = spilling.load_latest(S)
    assert found is not None
    assert found.state[-1] == 1999


# ---- What is refused ----


@pytest.mark.parametrize(
    "bad", ["", " ", ".", "..", "../x", "a/b", ".x", "x" * 129, "a b", "a\nb", "ä", None, 7]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_id_that_can_not_be_one_is_refused(checkpointer: Checkpointer, bad: Any, which: int) -> None:
    ids = [S, "a", "s"]
    ids[which] = bad
    with pytest.raises(InvalidId):
        checkpointer.save(*ids, {})
    if which == 0:
        for call in (
            checkpointer.load_latest, checkpointer.list, checkpointer.prune, checkpointer.delete_session,
            checkpointer.stats,
        ):  # fmt: skip
            with pytest.raises(InvalidId):
                call(bad)


@pytest.mark.parametrize("bad", [5, b"x", "\0", "\ud800", "a\n"])
def test_what_can_not_be_asked_for_is_refused_by_every_store(checkpointer: Checkpointer, bad: Any) -> None:
    save_all(checkpointer, "1")
    with pytest.raises(InvalidId):
        checkpointer.load_latest(S, bad)
    with pytest.raises(InvalidId):
        checkpointer.list(S, agent_id=bad)
    with pytest.raises(InvalidId):
        checkpointer.load_by_step(S, bad)
    with pytest.raises(InvalidId):
        checkpointer.resume_from(S, bad)
    assert checkpointer.load_latest(S, "crews/é#2[1]") is None


def test_a_state_that_can_not_be_stored_is_told_of_with_its_place(checkpointer: Checkpointer) -> None:
    with pytest.raises(StateNotSerializable, match="session 'session-1', agent 'a'") as caught:
        checkpointer.save(S, "a", "s", {"items": [1, {"conn": object()}]})
    assert (caught.value.path, caught.value.step_id) == (".items[1].conn", "s")
    assert checkpointer.load_latest(S) is None


@pytest.mark.parametrize("metadata", [[1], "text", {1: 2}, {"x": object()}, {"x": "y" * 40_000}])
def test_metadata_that_can_not_be_kept_are_refused(checkpointer: Checkpointer, metadata: Any) -> None:
    with pytest.raises((UsageError, StateNotSerializable)):
        checkpointer.save(S, "a", "s", 1, metadata)
    assert checkpointer.load_latest(S) is None


@dataclasses.dataclass
class Restless:
    n: int

    def __post_init__(self) -> None:
        self.n += 1


def test_a_state_that_would_not_come_back_as_it_is_is_refused_when_it_is_saved(
    checkpointer: Checkpointer,
) -> None:
    with pytest.raises(StateNotSerializable):
        checkpointer.save(S, "a", "s", [Restless(1)])


def test_a_class_that_is_gone_is_an_error_and_never_a_dict(
    checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer.save(S, "a", "s", Named(name="x"))
    monkeypatch.delattr(sys.modules[Named.__module__], "Named")
    with pytest.raises(UnknownType, match="Named"):
        checkpointer.load_latest(S)


def test_only_a_store_that_keeps_checkpoints_will_do(store: Store) -> None:
    with pytest.raises(UsageError, match="keeps no agent checkpoints"):
        get_checkpointer(ON, Store(store.url, store.journal, store.blobs))


# ---- Damage, in the file ----


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture
def on_file(file: Path) -> Iterator[Checkpointer]:
    with get_checkpointer(ON, f"sqlite:///{file}") as checkpointer:
        checkpointer.save(S, "a", "whole", ["first"])
        checkpointer.save(S, "a", "hurt", ["x" * 5000])
        yield checkpointer


@pytest.mark.parametrize(
    "change",
    [
        "state_blob = substr(state_blob, 1, 20)",
        "state_blob = 'H4sI'",
        "state_blob = '!' || state_blob",
        "state_blob = NULL",
        "state_blob = 7",
        "state_blob = CAST(X'FFFE' AS TEXT)",
        "format = 'json'",
        "format = 'pickle'",
        "format = NULL",
        "size_bytes = 10",
        "size_bytes = 99999999999",
        "size_bytes = 'many'",
        "state_hash = replace(state_hash, substr(state_hash, 1, 1), 'g')",
        "state_hash = 5",
        "created_at = 'yesterday'",
        "created_at = 99999999999999999",
        "metadata = '{'",
        "metadata = '[1]'",
        "metadata = 3",
        "state_ref = '../../etc/passwd', state_blob = NULL",
    ],
)
def test_a_damaged_checkpoint_is_an_error_and_hides_no_other(
    on_file: Checkpointer, file: Path, change: str
) -> None:
    with closing(sqlite3.connect(file)) as other:
        # Columns that must not be NULL are given the worst that they may hold.
        set_ = change.replace("format = NULL", "format = X'00'")
        other.execute(f"UPDATE agent_checkpoints SET {set_} WHERE step_id = 'hurt'")  # noqa: S608 - constants
        other.commit()
    with pytest.raises((CorruptRecord, InvalidId)):
        on_file.load_latest(S)
    hurt, whole = on_file.list(S)
    assert whole.state == ["first"]
    with pytest.raises((CorruptRecord, InvalidId)):
        _ = hurt.state
    assert on_file.delete_session(S) == 2


def test_metadata_that_an_older_version_left_out_are_empty(on_file: Checkpointer, file: Path) -> None:
    with closing(sqlite3.connect(file)) as other:
        other.execute("UPDATE agent_checkpoints SET metadata = NULL")
        other.commit()
    found = on_file.load_latest(S)
    assert found is not None
    assert found.metadata == {}


def test_a_compressed_bomb_is_not_blown_up(on_file: Checkpointer, file: Path) -> None:
    import base64
    import zlib

    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = packer.compress(b"[" + b"0" * 30_000_000) + packer.flush()
    with closing(sqlite3.connect(file)) as other:
        other.execute(
            "UPDATE agent_checkpoints SET state_blob = ? WHERE step_id = 'hurt'",
            (base64.b64encode(bomb).decode(),),
        )
        other.commit()
    with pytest.raises(CorruptRecord, match="more than 5004 bytes"):
        on_file.load_latest(S)


def test_what_was_deleted_is_not_in_the_file_after_a_vacuum(on_file: Checkpointer, file: Path) -> None:
    on_file.save(
        S, "a", "s", {"canary": "canary-4711"}, {"also": "canary-4711"}, inputs=Inputs(("canary-4711",))
    )
    on_file.delete_session(S)
    on_file.close()
    with closing(sqlite3.connect(file)) as other:
        other.execute("VACUUM")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"canary-4711" not in file.read_bytes()


# ---- Going on from a checkpoint ----


def test_a_step_can_be_made_the_resume_point_and_that_can_be_undone(checkpointer: Checkpointer) -> None:
    save_all(checkpointer, "1", "2", "3")
    checkpointer.resume_from(S, "1")
    latest = checkpointer.load_latest(S)
    assert latest is not None
    assert (latest.step_id, latest.state, latest.seq) == ("1", {"step": "1"}, 4)
    assert latest.metadata["resume_point"] == 1
    checkpointer.undo_resume_from(S)
    latest = checkpointer.load_latest(S)
    assert latest is not None
    assert (latest.step_id, latest.state) == ("3", {"step": "3"})
    assert steps(checkpointer) == ["1", "2", "3", "1", "3"]  # nothing was overwritten
    with pytest.raises(UsageError, match="no resume point"):
        checkpointer.undo_resume_from(S)


def test_setting_a_resume_point_and_undoing_it_removes_nothing(store: Store) -> None:
    """Whoever does that may have other settings than the agents: the command line has those of its folder."""
    agents = Checkpointer(CheckpointingConfig(enabled=True, retention_per_session=0), store)
    for number in range(8):
        agents.save(S, "agent", str(number), number)
    operator = Checkpointer(CheckpointingConfig(enabled=True, retention_per_session=2), store)
    operator.resume_from(S, "3")
    operator.undo_resume_from(S)
    assert agents.stats(S).checkpoints == 10


def test_a_resume_point_is_used_up_by_the_next_save(checkpointer: Checkpointer) -> None:
    save_all(checkpointer, "1", "2")
    checkpointer.resume_from(S, "1")
    save_all(checkpointer, "2")
    with pytest.raises(UsageError, match="no resume point"):
        checkpointer.undo_resume_from(S)


def test_a_resume_point_keeps_metadata_and_inputs(checkpointer: Checkpointer) -> None:
    checkpointer.save(S, "a", "1", [3], {"who": "me"}, inputs=Inputs((1,), {"b": 2}, 7))
    copy = checkpointer.resume_from(S, "1")
    assert copy.metadata["who"] == "me"
    assert copy.inputs == ((1,), {"b": 2}, 7)
    undone = checkpointer.undo_resume_from(S)
    assert undone.metadata == {"who": "me", "undone": 2}


def test_a_checkpoint_with_all_the_metadata_it_may_have_can_be_a_resume_point(
    checkpointer: Checkpointer,
) -> None:
    checkpointer.save(S, "a", "1", 1, {"note": "x" * (METADATA_MAX_BYTES - len('{"note":""}'))})
    checkpointer.save(S, "a", "2", 2)
    assert checkpointer.resume_from(S, "1").state == 1
    assert checkpointer.undo_resume_from(S).state == 2


def test_a_resume_point_of_nothing_is_refused(checkpointer: Checkpointer) -> None:
    with pytest.raises(CheckpointNotFound):
        checkpointer.resume_from(S, "1")
    with pytest.raises(CheckpointNotFound):
        checkpointer.undo_resume_from(S)
    save_all(checkpointer, "1")
    with pytest.raises(CheckpointNotFound):
        checkpointer.resume_from(S, "2")


# ---- Replay ----


def scored(items: list[int], *, bonus: int = 0) -> dict[str, Any]:
    return {"items": items, "sum": sum(items) + bonus, "tags": {"b", "a"}}


def test_a_replay_that_gives_the_same_is_equal(checkpointer: Checkpointer) -> None:
    checkpointer.save(S, "a", "s", scored([1, 2], bonus=3), inputs=Inputs(([1, 2],), {"bonus": 3}))
    found = checkpointer.replay(S, "s", scored)
    assert found.equal
    assert found.output == scored([1, 2], bonus=3)


def test_a_replay_tells_where_what_came_out_differs(checkpointer: Checkpointer) -> None:
    one, other = Decimal("1.0"), Decimal("1.00")
    state = {
        "a": [1, 2, 3],
        "b": {"x": one},
        "c": {1, 2},
        "gone": None,
        "p": Named(name="one"),
        "f": 1,
    }
    now = {"a": [1, 5], "b": {"x": other}, "c": {2, 3}, "new": 0, "p": Named(name="two"), "f": 1.0}
    checkpointer.save(S, "a", "s", state, inputs=Inputs())
    found = checkpointer.replay(S, "s", lambda: now)
    assert [(at.path, at.kind, at.recorded, at.replayed) for at in found.differences] == [
        (".a[1]", "changed", 2, 5),
        (".a[2]", "missing", 3, None),
        (".b.x", "changed", one, other),
        (".c{1}", "missing", 1, None),
        (".c{3}", "added", None, 3),
        (".gone", "missing", None, None),
        (".p.name", "changed", "one", "two"),
        (".f", "changed", 1, 1.0),
        (".new", "added", None, 0),
    ]


def test_a_replay_of_what_was_not_recorded_is_refused(checkpointer: Checkpointer) -> None:
    with pytest.raises(CheckpointNotFound):
        checkpointer.replay(S, "s", scored)
    checkpointer.save(S, "a", "s", 1)
    with pytest.raises(UsageError, match="no recorded inputs"):
        checkpointer.replay(S, "s", scored)


@pytest.mark.parametrize("inside", [False, True])
def test_an_async_function_is_replayed_from_plain_code_and_inside_a_loop(
    checkpointer: Checkpointer, inside: bool
) -> None:
    async def doubled(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    checkpointer.save(S, "a", "s", 8, inputs=Inputs((4,)))

    async def replay() -> bool:
        return checkpointer.replay(S, "s", doubled).equal

    assert asyncio.run(replay()) if inside else checkpointer.replay(S, "s", doubled).equal


# ---- In event loops ----


async def test_the_async_form_does_the_same(store: Store) -> None:
    checkpointer = AsyncCheckpointer(CheckpointingConfig(enabled=True, retention_per_session=3), store)
    state = {"n": 0}
    saving = checkpointer.save(S, "a", "1", state, {"m": 1}, inputs=Inputs((1,)))
    saved = await saving
    assert saved is not None
    for name in ("2", "3", "4"):
        await checkpointer.save(S, "a", name, {"n": int(name)})
    latest, first = await checkpointer.load_latest(S), await checkpointer.load_by_step(S, "1")
    assert latest is not None
    assert (latest.state, first) == ({"n": 4}, None)
    assert [one.step_id for one in await checkpointer.list(S)] == ["4", "3", "2"]
    assert (await checkpointer.stats(S)).checkpoints == 3
    assert (await checkpointer.resume_from(S, "2")).seq == 5
    assert (await checkpointer.undo_resume_from(S)).step_id == "4"
    assert (await checkpointer.prune(S, 1)).kept == 1
    await checkpointer.save(S, "a", "r", 6, inputs=Inputs((2,), {"by": 3}))

    async def times(n: int, by: int) -> int:
        return n * by

    assert (await checkpointer.replay(S, "r", times)).equal
    assert await checkpointer.delete_session(S) == 2
    await checkpointer.close()
    disabled = AsyncCheckpointer(CheckpointingConfig(), store)
    assert await disabled.save(S, "a", "1", object()) is None


async def test_tasks_that_save_at_once_get_places_of_their_own(store: Store) -> None:
    checkpointer = AsyncCheckpointer(KEEP_ALL, store)
    saved = await asyncio.gather(*(checkpointer.save(S, f"a{n}", "s", n) for n in range(40)))
    assert sorted(one.seq for one in saved if one is not None) == list(range(1, 41))


async def test_a_state_that_another_task_changes_meanwhile_is_saved_as_it_was(store: Store) -> None:
    state = {"n": 1}
    checkpointer = AsyncCheckpointer(ON, store)
    saving = asyncio.create_task(checkpointer.save(S, "a", "s", state))
    await asyncio.sleep(0)
    state["n"] = 2
    await saving
    found = await checkpointer.load_latest(S)
    assert found is not None
    assert found.state == {"n": 1}


# ---- Saving from inside an agent ----


def test_saving_if_enabled_does_nothing_when_it_should_not(store: Store) -> None:
    assert save_checkpoint_if_enabled(CheckpointingConfig(), S, "a", "s", 1, store=store) is None
    assert save_checkpoint_if_enabled(ON, None, "a", "s", 1, store=store) is None
    at_completion = CheckpointingConfig(enabled=True, granularity="agent")
    assert save_checkpoint_if_enabled(at_completion, S, "a", "s", 1, store=store) is None
    assert get_checkpointer(ON, store).load_latest(S) is None
    saved = save_checkpoint_if_enabled(at_completion, S, "a", "s", 1, {"m": 1}, completed=True, store=store)
    assert saved is not None
    assert (saved.seq, saved.metadata) == (1, {"m": 1})
    assert save_checkpoint_if_enabled(ON, S, "a", "s", 2, store=store) is not None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("../x", "a", "s", 1), "can't be a session id"),
        ((S, "a", "s", object()), "can't be stored"),
        ((S, "a", "s", 1, [2]), "no dict"),
    ],
)
def test_saving_if_enabled_never_raises_but_logs_and_counts(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: Any, reason: str
) -> None:
    before = failed_saves()
    assert save_checkpoint_if_enabled(ON, *arguments, store=store) is None
    assert failed_saves() == before + 1
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["event"], told["level"]) == ("checkpoint_not_saved", "warning")
    assert reason in told["reason"]


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////no/such/folder/x.db"])
def test_a_store_that_can_not_be_used_does_not_fail_the_agent_either(url: str) -> None:
    before = failed_saves()
    assert save_checkpoint_if_enabled(ON, S, "a", "s", 1, store=url) is None
    assert failed_saves() == before + 1


def test_a_store_named_by_url_or_environment_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        save_checkpoint_if_enabled(ON, S, "a", str(number), number, store="memory://")
    last = save_checkpoint_if_enabled(ON, S, "a", "3", 3, store="memory://")
    assert last is not None
    assert last.seq == 4
    monkeypatch.setenv("DURABLE_STORE", f"sqlite:///{tmp_path / 'named.db'}")
    save_checkpoint_if_enabled(ON, S, "a", "s", 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABLE_STORE")
    save_checkpoint_if_enabled(ON, S, "a", "s", 1)
    for name in ("named.db", "durable.db"):
        with get_checkpointer(ON, f"sqlite:///{tmp_path / name}") as checkpointer:
            assert steps(checkpointer) == ["s"]


def test_an_agent_function_is_saved_when_it_is_called_with_a_session(store: Store) -> None:
    @checkpointed(agent_id="analyst", config=ON, store=store)
    def analyse(notes: list[str], factor: int = 1) -> dict[str, Any]:
        notes.append("seen")
        return {"notes": len(notes) * factor}

    checkpointer = get_checkpointer(ON, store)
    assert analyse(["a"]) == {"notes": 2}
    assert checkpointer.load_latest(S) is None
    assert analyse(["a", "b"], factor=2, session_id=S) == {"notes": 6}  # type: ignore[call-arg]  # needn't be declared
    found = checkpointer.load_latest(S, "analyst")
    assert found is not None
    assert (found.step_id, found.state) == ("analyse", {"notes": 6})
    assert found.inputs == ((["a", "b"],), {"factor": 2}, None)  # as they were before the call
    assert checkpointer.replay(S, "analyse", analyse).equal
    assert analyse.__name__ == "analyse"


async def test_an_async_agent_function_may_have_the_session_and_a_seed_as_parameters(store: Store) -> None:
    sessions: list[str | None] = []

    @checkpointed(agent_id="coder", step_id="write", config=ON, store=store)
    async def code(plan: str, *, seed: int = 0, session_id: str | None = None) -> list[object]:
        sessions.append(session_id)
        return [plan, seed]

    _, drawn = await code("p", session_id=S)
    assert isinstance(drawn, int)
    found = await AsyncCheckpointer(ON, store).load_by_step(S, "write")
    assert found is not None
    assert found.inputs == (("p",), {}, drawn)
    assert (await AsyncCheckpointer(ON, store).replay(S, "write", code)).equal
    assert await code("p", seed=5, session_id=S) == ["p", 5]
    assert sessions == [S, S, S]
    assert get_checkpointer(ON, store).stats(S).checkpoints == 2  # the replay saved nothing


def test_a_replay_gives_the_session_to_a_function_that_takes_it_and_saves_nothing(store: Store) -> None:
    def logged(fn: Any) -> Any:
        return functools.wraps(fn)(lambda *args, **kwargs: [*fn(*args, **kwargs), "logged"])

    marked = checkpointed(agent_id="a", config=ON, store=store)

    @marked
    def needs(x: int, *, session_id: str) -> list[object]:
        return [x, session_id]

    @marked
    def takes(session_id: str | None = None, x: int = 0) -> list[object]:
        return [x, session_id]

    @marked
    def goes_without(x: int, **options: object) -> list[object]:
        return [x, options]

    assert needs(1, session_id=S) == [1, S]
    assert takes(session_id=S, x=2) == [2, S]
    assert goes_without(1, session_id=S) == [1, {}]
    checkpointer = get_checkpointer(ON, store)
    for fn in (needs, takes, goes_without):
        assert checkpointer.replay(S, fn.__name__, fn).equal
    assert not checkpointer.replay(S, "needs", logged(needs)).equal
    assert checkpointer.stats(S).checkpoints == 3


@pytest.mark.parametrize("granularity", ["step", "agent"])
def test_a_call_of_an_agent_function_is_its_completion(store: Store, granularity: Any) -> None:
    config = CheckpointingConfig(enabled=True, granularity=granularity)
    checkpointed(agent_id="a", step_id="s", config=config, store=store)(scored)([1], session_id=S)  # type: ignore[call-arg]  # needn't be declared
    assert steps(get_checkpointer(ON, store)) == ["s"]


def test_an_agent_function_that_raises_is_not_saved(store: Store) -> None:
    @checkpointed(agent_id="a", config=ON, store=store)
    def fail(*, session_id: str | None = None) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail(session_id=S)
    assert get_checkpointer(ON, store).load_latest(S) is None


def test_an_agent_function_keeps_its_result_when_that_can_not_be_saved(store: Store) -> None:
    class Broken:
        pass

    broken = Broken()

    @checkpointed(agent_id="a", config=ON, store=store)
    def odd(given: object, *, session_id: str | None = None) -> object:
        return given

    before = failed_saves()
    assert odd(broken, session_id=S) is broken
    assert failed_saves() == before + 1


def test_an_agent_function_takes_the_settings_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    (tmp_path / "durable.toml").write_text("[checkpointing]\nenabled = true\n")
    monkeypatch.chdir(tmp_path)

    @checkpointed(agent_id="a", store=store)
    def agent(*, session_id: str | None = None) -> int:
        return 1

    agent(session_id=S)
    assert steps(get_checkpointer(ON, store)) == ["agent"]


def test_what_can_not_be_an_agent_function_is_refused() -> None:
    def generates() -> Iterator[int]:
        yield 1

    with pytest.raises(UsageError, match="returns its state"):
        checkpointed(agent_id="a")(generates)
    with pytest.raises(InvalidId):
        checkpointed(agent_id="a/b")
    with pytest.raises(InvalidId):
        checkpointed(agent_id="a", step_id="../x")(scored)


def test_the_store_of_an_executor_is_shared(tmp_path: Path) -> None:
    shared = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    with get_checkpointer(ON, shared) as first:
        first.save(S, "a", "s", 1)
    with get_checkpointer(ON, store=f"sqlite:///{tmp_path / 'runs.db'}") as second:
        assert second.load_latest(S) is not None
    asyncio.run(shared.close())
