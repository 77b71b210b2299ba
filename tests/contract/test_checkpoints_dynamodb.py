"""What only checkpoints in DynamoDB can get wrong: lost replies, others in between, how much is sent."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable, Iterator

import pytest

from durable_core import Checkpointer, CheckpointingConfig
from durable_core.blobs.s3 import S3Blobs
from durable_core.checkpoints.base import JSON_GZIP
from durable_core.checkpoints.dynamodb import DynamoCheckpoints
from durable_core.codec import encode
from durable_core.envelope import seal
from durable_core.errors import CorruptRecord, JournalUnavailable, MissingBlob, StoreMisconfigured
from durable_core.journal.memory import MemoryJournal
from durable_core.store import Store
from durable_core.testing.checkpoint_contract import SESSION, appended, record, seqs
from tests.cloud import Cloud
from tests.cloud_faults import DENIED, REPLY_LOST, THROTTLED, FaultyTransport


class Table:
    """A table with checkpoints, seen by processes that know nothing of one another."""

    def __init__(self, cloud: Cloud) -> None:
        self.name = cloud.new_table()
        self.transport = FaultyTransport(cloud.transport("boto3"))

    def process(self) -> DynamoCheckpoints:
        return DynamoCheckpoints(self.transport, self.name)

    def sent(self, operation: str) -> int:
        return self.transport.counts[operation]


@pytest.fixture
def table(cloud: Cloud) -> Iterator[Table]:
    made = Table(cloud)
    yield made
    made.transport.close_now()


def test_a_save_is_one_write_and_a_read_that_finds_nothing(table: Table) -> None:
    """Which costs half a unit or one, however large the states are."""
    one = table.process()
    appended(one, "first")
    before = table.transport.counts.copy()
    appended(one, *map(str, range(10)))
    assert table.transport.counts - before == {"put_item": 10, "query": 10}
    looks = [sent.request for sent in table.transport.sent if sent.operation == "query"]
    assert [look["ExpressionAttributeValues"][":first"]["S"] for look in looks] == [
        f"CKPT#{seq:012d}" for seq in range(1, 12)
    ]
    assert all("state" not in look["ProjectionExpression"].replace("#state_", "") for look in looks)


def test_who_is_refused_by_another_takes_the_next_place(table: Table) -> None:
    one, other = table.process(), table.process()
    assert appended(one, "1") == [1]
    assert appended(other, "2", "3", "4") == [2, 3, 4]
    assert appended(one, "5") == [5]  # refused once at 2, then after a look
    assert appended(other, "6") == [6]
    assert seqs(one) == [1, 2, 3, 4, 5, 6]


def test_a_place_that_another_process_has_pruned_is_not_given_again(table: Table) -> None:
    """Else what was saved last would be behind what is older, and the next to be pruned."""
    slow, busy = table.process(), table.process()
    assert appended(slow, "1") == [1]
    assert appended(busy, *map(str, range(2, 9))) == list(range(2, 9))
    assert busy.remove(busy.prunable(SESSION, 2)) == 6
    assert appended(slow, "9") == [9]
    assert seqs(slow) == [7, 8, 9]


@pytest.mark.parametrize("damage", [{"S": "x"}, {"N": "7"}, None], ids=str)
def test_a_damaged_seq_counts_for_nothing(table: Table, damage: dict[str, str] | None) -> None:
    """The place is in the key. Else the next save would be taken for the first."""
    appended(table.process(), "1", "2")
    key = {"pk": {"S": f"SESSION#{SESSION}"}, "sk": {"S": "CKPT#000000000002"}}
    found = table.transport.call_now("dynamodb", "get_item", {"TableName": table.name, "Key": key})["Item"]
    item = {name: value for name, value in (found | {"seq": damage}).items() if value is not None}
    table.transport.call_now("dynamodb", "put_item", {"TableName": table.name, "Item": item})
    fresh = table.process()
    assert seqs(fresh) == [1, 2]
    assert fresh.stats(SESSION).latest_seq == 2
    assert appended(fresh, "3") == [3]
    assert fresh.remove(fresh.prunable(SESSION, 1)) == 2
    assert seqs(table.process()) == [3]


def test_an_item_that_is_no_checkpoint_is_not_taken_for_one(table: Table) -> None:
    item = {"pk": {"S": f"SESSION#{SESSION}"}, "sk": {"S": "CKPT#0000000000x1"}}
    table.transport.call_now("dynamodb", "put_item", {"TableName": table.name, "Item": item})
    with pytest.raises(CorruptRecord, match="CKPT#0000000000x1"):
        appended(table.process(), "1")


def test_a_put_whose_reply_was_lost_is_known_by_its_id(table: Table) -> None:
    one = table.process()
    appended(one, "1")
    mine = record("2")
    table.transport.plan("put_item", REPLY_LOST)
    with pytest.raises(JournalUnavailable):
        one.append(mine)
    assert one.append(mine) == 2
    assert seqs(one) == [1, 2]


@pytest.mark.parametrize(("fault", "error"), [(THROTTLED, JournalUnavailable), (DENIED, StoreMisconfigured)])
@pytest.mark.parametrize("operation", ["put_item", "query", "get_item", "delete_item"])
def test_a_request_that_fails_is_an_error_and_never_an_empty_answer(
    table: Table, operation: str, fault: str, error: type[Exception]
) -> None:
    one = table.process()
    appended(one, "1", "2")
    table.transport.plan(operation, fault)
    verbs: dict[str, Callable[[], object]] = {
        "put_item": lambda: appended(one, "3"),
        "query": lambda: one.latest(SESSION),
        "get_item": lambda: one.at(SESSION, 1),
        "delete_item": lambda: one.remove(one.places(SESSION, limit=1)),
    }
    with pytest.raises(error):
        verbs[operation]()
    assert seqs(one) == [1, 2]


def test_every_page_is_turned(table: Table) -> None:
    """A page of a query has 1 MB at the most, whatever of it is asked for."""
    one = table.process()
    for number in range(12):
        one.append(record(str(number), f"agent-{number % 3}", state=bytes(300_000), format=JSON_GZIP))
    assert len(one.page(SESSION)) == 12
    assert one.stats(SESSION).checkpoints == 12
    assert seqs(one) == list(range(1, 13))
    first = one.of_step(SESSION, "0")
    assert first is not None
    assert first.state == bytes(300_000)
    assert [place.seq for place in one.prunable(SESSION, 1)] == list(range(1, 10))


def test_pruning_one_checkpoint_reads_no_more_than_a_few(table: Table) -> None:
    one = table.process()
    appended(one, *map(str, range(60)))
    before = table.transport.counts.copy()
    (old,) = one.prunable(SESSION, 59, limit=100)
    assert old.seq == 1
    assert one.remove([old]) == 1
    assert table.transport.counts - before == {"query": 3, "delete_item": 1}
    limits = [sent.request["Limit"] for sent in table.transport.sent if sent.operation == "query"]
    assert limits[-1] == 1  # whether there is a newer one of the agent: the next one is


@pytest.mark.parametrize("size_bytes", [345_000, 365_000, 1_000_000])
def test_a_state_up_to_the_limit_is_in_the_item_and_a_larger_one_in_s3(
    table: Table, cloud: Cloud, size_bytes: int
) -> None:
    blobs = S3Blobs(table.transport, cloud.shared_bucket, f"{table.name}/")
    store = Store("dynamodb://", MemoryJournal(), blobs, checkpoints=table.process())
    config = CheckpointingConfig(enabled=True, retention_per_session=1)
    checkpointer = Checkpointer(config, store)
    noise = base64.b64encode(
        random.Random(1).randbytes(size_bytes)
    ).decode()  # gzip makes it size_bytes again
    stored = len(seal(encode(noise), codec="gzip").data)
    metadata = {"note": "x" * 32_000}
    checkpointer.save(SESSION, "a" * 128, "s" * 128, noise, metadata)
    found = checkpointer.load_latest(SESSION)
    assert found is not None
    assert (found.state, found.metadata) == (noise, metadata)
    kept = checkpointer.kept.latest(SESSION)
    assert kept is not None
    assert (kept.state_ref is None) == (stored <= 350 * 1024)
    if kept.state_ref is not None:
        checkpointer.save(SESSION, "a" * 128, "t", 1)
        with pytest.raises(MissingBlob):
            blobs.read(kept.state_ref)


def test_every_name_in_an_expression_is_a_placeholder(table: Table) -> None:
    one = table.process()
    appended(one, "1", "2", "3")
    one.page(SESSION, agent_id="a", before=3)
    one.remove(one.prunable(SESSION, 1))
    one.sessions()
    one.at(SESSION, 3)
    for sent in table.transport.sent:
        for name, text in sent.request.items():
            if name.endswith("Expression"):
                words = re.findall(r"[#:]?\b[a-z_]+\b", text)
                assert all(word[0] in "#:" or word == "attribute_not_exists" for word in words), text
        assert sent.request.get("ConsistentRead", True)
    reads = [sent for sent in table.transport.sent if sent.operation in ("query", "get_item")]
    assert all(sent.request["ConsistentRead"] for sent in reads)
