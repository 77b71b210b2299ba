"""The contract of a checkpoint store as tests: a store's own tests subclass it and give it `checkpoints`.

    class TestMyCheckpoints(CheckpointContract):
        @pytest.fixture
        def checkpoints(self) -> Iterator[CheckpointStore]:
            store = MyCheckpoints(...)
            yield store
            store.close()

Needs pytest and no plugin.
"""

from __future__ import annotations

import gzip
import random
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from durable_core.checkpoints.base import JSON, JSON_GZIP, CheckpointRecord, CheckpointStore
from durable_core.errors import InvalidId

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION: Final = "session-1"
AT_MS: Final = 1_767_225_600_000
_ids: Final = count(1)


def record(
    step_id: str = "s", agent_id: str = "a", session_id: str = SESSION, **columns: Any
) -> CheckpointRecord:
    """A checkpoint before it is appended, with an id that no other has."""
    state = columns.pop("state", b'{"n":1}')
    made = CheckpointRecord(
        f"id-{next(_ids)}", session_id, agent_id, step_id, 0, JSON, len(state), sha256(state).hexdigest(),
        "{}", AT_MS, state,
    )  # fmt: skip
    return made._replace(**columns)


def appended(
    checkpoints: CheckpointStore, *steps: str, agent_id: str = "a", session_id: str = SESSION
) -> list[int]:
    """Appends a checkpoint for each step; gives their seqs."""
    return [checkpoints.append(record(step, agent_id, session_id)) for step in steps]


def seqs(checkpoints: CheckpointStore, session_id: str = SESSION) -> list[int]:
    """What is kept of a session, oldest first."""
    return [place.seq for place in checkpoints.places(session_id)]


class CheckpointContract:
    """What every checkpoint store holds to."""

    @pytest.fixture
    def checkpoints(self) -> Iterator[CheckpointStore]:
        """The store under test, empty: for subclasses to give."""
        raise NotImplementedError("give a store")

    # ---- Places ----

    def test_places_are_given_from_1_without_gaps_in_each_session(self, checkpoints: CheckpointStore) -> None:
        """One session has no say in another."""
        assert appended(checkpoints, "x", "y") == [1, 2]
        assert appended(checkpoints, "x", session_id="session-10") == [1]
        assert appended(checkpoints, "z") == [3]

    def test_an_append_whose_reply_was_lost_is_known_when_it_is_made_again(
        self, checkpoints: CheckpointStore
    ) -> None:
        """By its id: nothing is kept twice."""
        mine = record("x")
        assert checkpoints.append(mine) == 1
        assert checkpoints.append(mine) == 1
        assert appended(checkpoints, "y") == [2]
        assert seqs(checkpoints) == [1, 2]

    @pytest.mark.parametrize("writers", [8])
    def test_of_writers_at_once_each_gets_a_place_of_its_own(
        self, checkpoints: CheckpointStore, writers: int
    ) -> None:
        """And none is left out."""
        each = 20

        def write(number: int) -> list[int]:
            return appended(checkpoints, *map(str, range(each)), agent_id=f"agent-{number}")

        with ThreadPoolExecutor(writers) as pool:
            given = [seq for found in pool.map(write, range(writers)) for seq in found]
        assert sorted(given) == list(range(1, writers * each + 1))
        assert seqs(checkpoints) == sorted(given)

    @pytest.mark.parametrize("session_id", ["", " ", "../x", "a/b", ".hidden", "x" * 129, "s\0"])
    def test_a_session_that_can_not_be_named_so_is_refused(
        self, checkpoints: CheckpointStore, session_id: str
    ) -> None:
        """In the store, too."""
        with pytest.raises(InvalidId):
            checkpoints.append(record(session_id=session_id))
        assert list(checkpoints.sessions()) == []

    # ---- What comes back ----

    @pytest.mark.parametrize("stored_format", [JSON, JSON_GZIP])
    def test_a_record_comes_back_as_it_was_appended(
        self, checkpoints: CheckpointStore, stored_format: str
    ) -> None:
        """By every way to it."""
        raw = b'{"text":"\\u00e9\\n\\u0000"}'
        mine = record(
            "risk/score#2",
            "risk/inner",
            state=gzip.compress(raw, mtime=0) if stored_format == JSON_GZIP else raw,
            format=stored_format,
            metadata='{"a":"\\ud800"}',
            size_bytes=7,
        )
        seq = checkpoints.append(mine)
        now = mine._replace(seq=seq)
        assert checkpoints.latest(SESSION) == now
        assert checkpoints.latest(SESSION, "risk/inner") == now
        assert checkpoints.of_step(SESSION, "risk/score#2") == now
        assert checkpoints.at(SESSION, seq) == now
        assert checkpoints.page(SESSION, with_state=True) == [now]
        assert checkpoints.page(SESSION) == [now._replace(state=None)]
        (place,) = checkpoints.places(SESSION)
        assert place == (SESSION, seq, mine.id, None, 7)

    @pytest.mark.parametrize("size", [0, 1, 2047, 2048, 300_000])
    def test_a_state_of_any_size_comes_back(self, checkpoints: CheckpointStore, size: int) -> None:
        """Also one that can't be compressed."""
        state = random.Random(size).randbytes(min(size, checkpoints.inline_max_bytes))
        checkpoints.append(record(state=state, format=JSON_GZIP))
        found = checkpoints.latest(SESSION)
        assert found is not None
        assert found.state == state

    def test_a_pointer_to_a_blob_and_missing_metadata_come_back(self, checkpoints: CheckpointStore) -> None:
        """Nothing else is put in their place."""
        mine = record(state=b"")._replace(state=None, state_ref="sessions/session-1/id-abc", metadata=None)
        assert checkpoints.append(mine) == 1
        assert checkpoints.latest(SESSION) == mine._replace(seq=1)
        assert checkpoints.places(SESSION)[0].state_ref == "sessions/session-1/id-abc"

    def test_what_is_not_there_is_nothing(self, checkpoints: CheckpointStore) -> None:
        """And no error."""
        appended(checkpoints, "x")
        assert checkpoints.latest("other") is None
        assert checkpoints.latest(SESSION, "other") is None
        assert checkpoints.of_step(SESSION, "other") is None
        assert checkpoints.at(SESSION, 2) is None
        assert checkpoints.page("other") == []
        assert list(checkpoints.places("other")) == []
        assert checkpoints.remove([]) == 0

    # ---- Order ----

    def test_the_latest_is_the_last_that_was_appended_whatever_clocks_say(
        self, checkpoints: CheckpointStore
    ) -> None:
        """A clock that steps back, equal milliseconds, and step 10 after step 2."""
        for step, at_ms in (("2", AT_MS + 500), ("10", AT_MS), ("9", AT_MS)):
            checkpoints.append(record(step, "late" if step == "9" else "a", created_at_ms=at_ms))
        latest, of_agent = checkpoints.latest(SESSION), checkpoints.latest(SESSION, "a")
        assert latest is not None
        assert of_agent is not None
        assert (latest.step_id, of_agent.step_id) == ("9", "10")
        assert [one.step_id for one in checkpoints.page(SESSION)] == ["9", "10", "2"]

    def test_a_step_that_is_saved_again_has_both_and_gives_the_newer(
        self, checkpoints: CheckpointStore
    ) -> None:
        """Nothing is overwritten."""
        checkpoints.append(record("x", state=b"1"))
        checkpoints.append(record("y", state=b"2"))
        checkpoints.append(record("x", state=b"3", created_at_ms=AT_MS - 1))
        found = checkpoints.of_step(SESSION, "x")
        assert found is not None
        assert (found.seq, found.state) == (3, b"3")
        assert seqs(checkpoints) == [1, 2, 3]

    def test_pages_go_back_from_the_newest(self, checkpoints: CheckpointStore) -> None:
        """Each by where the last one ended; of one agent only, when that is asked for."""
        for number in range(7):
            checkpoints.append(record(str(number), "odd" if number % 2 else "even"))
        first = checkpoints.page(SESSION, limit=3)
        assert [one.seq for one in first] == [7, 6, 5]
        assert [one.seq for one in checkpoints.page(SESSION, limit=3, before=5)] == [4, 3, 2]
        assert [one.seq for one in checkpoints.page(SESSION, agent_id="odd", before=6)] == [4, 2]
        assert checkpoints.page(SESSION, before=1) == []

    # ---- Pruning ----

    def test_the_newest_of_the_session_and_of_each_agent_are_never_prunable(
        self, checkpoints: CheckpointStore
    ) -> None:
        """However few are to be kept."""
        appended(checkpoints, "1", "2", agent_id="early")
        appended(checkpoints, "3", "4", "5", agent_id="late")
        appended(checkpoints, "6", session_id="session-10")
        assert [place.seq for place in checkpoints.prunable(SESSION, 1)] == [1, 3, 4]
        assert [place.seq for place in checkpoints.prunable(SESSION, 2)] == [1, 3]
        assert [place.seq for place in checkpoints.prunable(SESSION, 1, limit=2)] == [1, 3]
        assert list(checkpoints.prunable(SESSION, 5)) == []
        assert list(checkpoints.prunable("other", 1)) == []

    def test_what_was_removed_is_gone_and_counted_once(self, checkpoints: CheckpointStore) -> None:
        """Whoever else removes it too."""
        appended(checkpoints, "1", "2", "3", "4")
        appended(checkpoints, "1", session_id="session-10")
        old = checkpoints.prunable(SESSION, 2)
        assert checkpoints.remove(old) == 2
        assert checkpoints.remove(old) == 0
        assert seqs(checkpoints) == [3, 4]
        assert checkpoints.of_step(SESSION, "1") is None
        assert checkpoints.at(SESSION, 2) is None
        assert seqs(checkpoints, "session-10") == [1]
        assert appended(checkpoints, "5") == [5]

    def test_what_was_seen_before_a_session_was_deleted_does_not_remove_what_came_after(
        self, checkpoints: CheckpointStore
    ) -> None:
        """Places are given anew then; ids aren't."""
        appended(checkpoints, "1", "2", "3")
        stale = checkpoints.prunable(SESSION, 1)
        assert checkpoints.remove(checkpoints.places(SESSION)) == 3
        assert list(checkpoints.sessions()) == []
        assert appended(checkpoints, "new", "newer") == [1, 2]
        assert checkpoints.remove(stale) == 0
        assert seqs(checkpoints) == [1, 2]

    # ---- Looking ----

    def test_a_session_is_counted(self, checkpoints: CheckpointStore) -> None:
        """And one that isn't there gives zeros."""
        checkpoints.append(record("1", "a", size_bytes=10, created_at_ms=AT_MS + 5))
        checkpoints.append(record("2", "b", size_bytes=20))
        checkpoints.append(record("3", "b", size_bytes=30, created_at_ms=AT_MS + 9))
        assert checkpoints.stats(SESSION) == (SESSION, 3, 2, 60, 3, AT_MS, AT_MS + 9)
        assert checkpoints.stats("other") == ("other", 0, 0, 0, 0, None, None)

    def test_sessions_are_listed_by_name_in_pages(self, checkpoints: CheckpointStore) -> None:
        """Each once, however much is kept of it."""
        for name in ("b", "a", "a-1", "c", "B"):
            appended(checkpoints, "1", "2", session_id=name)
        assert list(checkpoints.sessions()) == ["B", "a", "a-1", "b", "c"]
        assert list(checkpoints.sessions(limit=2)) == ["B", "a"]
        assert list(checkpoints.sessions(after="a", limit=2)) == ["a-1", "b"]

    def test_a_store_can_be_used_again_after_it_was_closed(self, checkpoints: CheckpointStore) -> None:
        """Closing twice is fine."""
        appended(checkpoints, "1")
        checkpoints.close()
        checkpoints.close()
        checkpoints.open()
        assert seqs(checkpoints) == [1]
