"""Requests to AWS that fail anywhere: the right result after a retry, or a typed error; nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import pytest

from durable_core import Context, Done, DurableWorkflowExecutor, step, workflow
from durable_core.aws.failures import ConditionRefused
from durable_core.aws.transport import Transport
from durable_core.errors import (
    CorruptRecord,
    JournalUnavailable,
    MissingBlob,
    OutputTooLarge,
    RunFailed,
    StoreMisconfigured,
)
from durable_core.journal import _dynamodb_keys as keys
from durable_core.journal import _dynamodb_table as table_module
from durable_core.journal import _items as items
from durable_core.journal.base import Departure, Lease, as_seen
from durable_core.journal.dynamodb import DynamoJournal
from durable_core.records import COMPLETED, RUNNING, Reply
from durable_core.testing.samples import (
    AT,
    RUN,
    attempt,
    claim,
    committed,
    driven,
    event,
    header,
    lease_of,
    owned,
    pruning,
    renewed,
    seen_now,
    segment,
)
from tests.aws_place import AwsPlace
from tests.cloud import Lent
from tests.cloud_faults import DENIED, FAULTS, REPLY_LOST, RETRYABLE, THROTTLED, UNREACHABLE, FaultyTransport
from tests.stores import TurnedClock

ran: Counter[str] = Counter()
broken = False


@step
async def small(number: int) -> int:
    ran["small"] += 1
    return number


@step
async def large(number: int) -> str:
    ran["large"] += 1
    return random.Random(number).randbytes(8_000).hex()


@step(semantics="at_most_once", verify=lambda key, number: Done(number))
async def pay(number: int) -> int:
    ran["pay"] += 1
    return number


@workflow
async def flow(ctx: Context) -> int:
    size = len(await ctx.step(large, 1))
    if broken:
        raise RuntimeError("as planned")
    return size + await ctx.step(small, 1) + await ctx.step(pay, 2)


RESULT = 16_000 + 1 + 2


def nth(number: int) -> Callable[[Mapping[str, Any]], bool]:
    """The request of this number."""
    asked = count()
    return lambda request: next(asked) == number


async def drive(aws: AwsPlace, clock: TurnedClock, transport: Transport, *, resumes: bool = False) -> int:
    """Runs it in a process of its own, or goes on with it; resumed also if it has failed."""
    async with DurableWorkflowExecutor(store=aws.store(clock, over=transport), clock=clock) as executor:
        running = executor.resume("r1", flow) if resumes else executor.run(flow, run_id="r1")
        result = await running
        return int(result.output)


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_request_fails_the_run_ends_right_or_can_be_resumed(
    aws: AwsPlace, moto_server: Any, fault: str
) -> None:
    await drive(aws, TurnedClock(), aws.faulty)
    operations = [sent.operation for sent in aws.faulty.sent]
    assert len(operations) > 10
    for number, operation in enumerate(operations):
        ran.clear()
        place, clock = AwsPlace(moto_server, aws.plain), TurnedClock()
        place.faulty.plan("*", fault, when=nth(number))
        if fault not in RETRYABLE or operation == "query":  # the replay, which begins anew with its drive
            with pytest.raises(JournalUnavailable if fault in RETRYABLE else StoreMisconfigured):
                await drive(place, clock, place.faulty)
        else:
            assert await drive(place, clock, place.faulty) == RESULT
            assert ran == {"small": 1, "large": 1, "pay": 1}
        place.assert_every_pointer_leads_somewhere()
        clock.turn(120)
        assert await drive(place, clock, place.plain) == RESULT
        place.assert_every_pointer_leads_somewhere()
        assert ran["pay"] <= 1
        assert max(ran.values()) <= 2


async def test_a_read_that_is_behind_after_each_write_misleads_nobody(aws: AwsPlace) -> None:
    """Only the indexes are read so, and what they say isn't believed."""
    aws.faulty.stale_reads = True
    ran.clear()
    for _ in range(2):
        assert await drive(aws, TurnedClock(), aws.faulty) == RESULT
    assert ran == {"small": 1, "large": 1, "pay": 1}


@pytest.mark.parametrize("fault", [DENIED, THROTTLED])
async def test_a_step_whose_blob_is_refused_is_not_committed(aws: AwsPlace, fault: str) -> None:
    """No row points to what isn't there, and nothing was lost."""
    aws.faulty.plan("put_object", fault, times=9)
    clock = TurnedClock()
    with pytest.raises(StoreMisconfigured if fault == DENIED else JournalUnavailable):
        await drive(aws, clock, aws.faulty)
    assert aws.objects() == set()
    assert [item for item in aws.items() if item.get("status") == {"S": "COMMITTED"}] == []
    clock.turn(120)
    assert await drive(aws, clock, aws.plain) == RESULT


async def test_a_commit_that_never_comes_after_its_blob_is_told_and_leaks_nothing_for_good(
    aws: AwsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = TurnedClock()
    ran.clear()
    aws.faulty.plan("put_item", UNREACHABLE, times=50, when=lambda request: "COMMITTED" in str(request))
    with pytest.raises(JournalUnavailable):
        await drive(aws, clock, aws.faulty)
    assert len(aws.objects()) == 1
    assert [item for item in aws.items() if item.get("status") == {"S": "COMMITTED"}] == []
    clock.turn(120)
    assert await drive(aws, clock, aws.plain) == RESULT
    assert ran == {"large": 2, "small": 1, "pay": 1}
    assert len(aws.objects()) == 2
    monkeypatch.setattr("durable_core.engine.pruning.ORPHAN_AGE_S", -1)
    async with DurableWorkflowExecutor(store=aws.store(clock, over=aws.plain), clock=clock) as executor:
        assert (await executor.sweep()).orphans == 1
    assert len(aws.objects()) == 1
    aws.assert_every_pointer_leads_somewhere()


@pytest.mark.parametrize("what", ["gone", "altered"])
async def test_a_blob_that_is_gone_or_altered_is_an_error_and_no_reason_to_run_again(
    aws: AwsPlace, what: str
) -> None:
    global broken
    clock, broken = TurnedClock(), True
    with pytest.raises(RunFailed):
        await drive(aws, clock, aws.plain)
    broken = False
    (ref,) = aws.objects()
    there = {"Bucket": aws.bucket, "Key": aws.prefix + ref}
    if what == "gone":
        aws.plain.call_now("s3", "delete_object", there)
    else:
        aws.plain.call_now("s3", "put_object", there | {"Body": b"other bytes"})
    steps = [item for item in aws.items() if item["sk"] != {"S": keys.HEADER}]
    ran.clear()
    with pytest.raises((CorruptRecord, RunFailed)) as caught:
        await drive(aws, clock, aws.plain, resumes=True)
    found = caught.value.__cause__ or caught.value
    assert isinstance(found, MissingBlob if what == "gone" else CorruptRecord)
    assert (found.run_id, found.step_id) == ("r1", "large")
    assert [item for item in aws.items() if item["sk"] != {"S": keys.HEADER}] == steps
    assert not ran


# ---- Every verb of the journal ----


async def applied_twice(verb: str, journal: DynamoJournal) -> list[Reply[Any]]:
    """A verb whose reply is lost the first time, and what its second call finds."""
    faulty = journal.table.transport
    assert isinstance(faulty, FaultyTransport)
    me, seen = await prepared(verb, journal)
    outcome = committed(attempt("waits"))
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: journal.create(owned("new"), 1000),
        "acquire": lambda: journal.acquire(header(status=RUNNING, fence=1), claim("next"), dead_owner="me"),
        "renew": lambda: renewed(journal, me),
        "leave": lambda: journal.leave(me, Departure(status=COMPLETED)),
        "cancel": lambda: journal.cancel(seen, AT),
        "begin": lambda: journal.begin(attempt(), None, me),
        "begin guarded": lambda: journal.begin(attempt(), None, me, guarded=True),
        "commit": lambda: journal.commit(outcome),
        "put": lambda: journal.put(committed(attempt()), None, me),
        "append": lambda: journal.append(segment()),
        "send": lambda: journal.send(event(5, "late"), seen),
        "send early": lambda: journal.send(event(run_id="unborn"), None),
        "take": lambda: journal.take(event(), outcome),
        "bury": lambda: journal.bury(me, AT),
        "expire": lambda: journal.expire(seen, 2**33),
    }
    faulty.plan("*", REPLY_LOST)
    with pytest.raises(JournalUnavailable) as caught:
        await calls[verb]()
    assert caught.value.run_id is not None
    return [await calls[verb]()]


async def prepared(verb: str, journal: DynamoJournal) -> tuple[Lease, Any]:
    """A run as the verb needs it."""
    me = await driven(journal)
    await journal.begin(attempt("waits"), None, me)
    await journal.send(event(), await seen_now(journal))
    if verb in ("bury", "expire"):
        await journal.leave(me, Departure(status=COMPLETED))
        me = await pruning(journal)
    if verb == "expire":
        await journal.bury(me, AT)
    return me, await seen_now(journal)


OWN: dict[str, Callable[[Any], bool]] = {
    "create": lambda row: bool(row.owner == "me"),
    "acquire": lambda row: bool(row.owner == "next" and row.fence == 2),
    "leave": lambda row: bool(row.owner is None and row.fence == 1),
    "cancel": lambda row: bool(row.status == "CANCELLED" and row.fence == 2),
    "begin": lambda row: bool(row == attempt()),
    "begin guarded": lambda row: bool(row == attempt()),
    "commit": lambda row: bool(row == committed(attempt("waits"))),
    "put": lambda row: bool(row == committed(attempt())),
    "append": lambda row: bool(row == segment()),
    "send": lambda row: bool(row == event(5, "late")),
    "send early": lambda row: bool(row == event(run_id="unborn")),
    "take": lambda row: bool(row == committed(attempt("waits"))),
    "bury": lambda row: bool(row.status == "TOMBSTONE" and row.fence == 2),
    "expire": lambda row: bool(row.expires_at_s == 2**33),
}


@pytest.mark.parametrize("shows_item", [True, False], ids=["with the item", "without it"])
@pytest.mark.parametrize("verb", OWN)
async def test_whoever_lost_a_reply_finds_its_own_write(aws: AwsPlace, verb: str, shows_item: bool) -> None:
    """In the refusal; where a refusal brings no item, in the table."""
    faulty = aws.faulty if shows_item else FaultyTransport(_Terse(aws.plain))
    (reply,) = await applied_twice(verb, aws.journal(TurnedClock(), over=faulty))
    assert not reply.ok
    assert OWN[verb](reply.row), reply.row


async def test_a_renewal_whose_reply_was_lost_is_made_again(aws: AwsPlace) -> None:
    (reply,) = await applied_twice("renew", aws.journal(TurnedClock()))
    assert reply.ok


@pytest.mark.parametrize(
    ("sort_key", "attribute", "verb"),
    [
        ("RUN", "fence", "acquire"),
        ("RUN", "lease_until_ms", "acquire"),
        ("RUN", "status", "acquire"),
        ("RUN", "owner", "leave"),
        ("RUN", "fence", "leave"),
        ("RUN", "status", "cancel"),
        ("RUN", "fence", "guarded"),
        ("RUN", "base_fence", "send"),
        ("STEP#s", "status", "commit"),
        ("STEP#s", "attempt_id", "commit"),
        ("STEP#s", "idempotency_key", "commit"),
        ("STEP#s", "attempt_id", "begin"),
        ("STEP#s", "fence", "delete"),
    ],
)
async def test_a_condition_on_what_is_not_there_does_not_hold(
    aws: AwsPlace, sort_key: str, attribute: str, verb: str
) -> None:
    """A record that somebody has damaged is refused, told as corrupt where it is read, and left as it is."""
    journal = aws.journal(TurnedClock())
    me = await driven(journal, lease_ms=-1000)
    await journal.begin(attempt(), None, me)
    seen = await seen_now(journal)
    aws.plain.call_now("dynamodb", "update_item", {
        "TableName": aws.table, "Key": keys.key(RUN, sort_key), "UpdateExpression": "REMOVE #name",
        "ExpressionAttributeNames": {"#name": attribute},
    })  # fmt: skip
    before = aws.items()
    calls: dict[str, Callable[[], Any]] = {
        "acquire": lambda: journal.acquire(seen, claim("next")),
        "leave": lambda: journal.leave(me, Departure(status=COMPLETED)),
        "cancel": lambda: journal.cancel(seen, AT),
        "guarded": lambda: journal.begin(attempt("t"), None, me, guarded=True),
        "send": lambda: journal.send(event(), seen),
        "commit": lambda: journal.commit(committed(attempt())),
        "begin": lambda: journal.begin(attempt(attempt_id="a2"), as_seen(attempt()), me),
        "delete": lambda: _deleted(journal),
    }
    if (attribute, verb) in (("owner", "leave"), ("fence", "guarded")):
        assert not (await calls[verb]()).ok  # what is read of it is whole
    else:
        with pytest.raises(CorruptRecord, match=attribute):
            await calls[verb]()
    assert aws.items() == before


async def _deleted(journal: DynamoJournal) -> None:
    await journal.delete(RUN, [items.child_of(items.step_item(attempt()))], 9)


async def test_an_item_over_400_kb_is_refused_before_it_is_sent(aws: AwsPlace) -> None:
    journal = aws.journal()
    me = await driven(journal)
    await journal.begin(attempt(), None, me)
    sent = len(aws.faulty.sent)
    with pytest.raises(OutputTooLarge) as caught:
        await journal.commit(committed(attempt(), b"x" * 409_600))
    assert (caught.value.run_id, caught.value.step_id) == (RUN, "s")
    assert len(aws.faulty.sent) == sent
    largest = committed(attempt(), error="x" * 404_000)  # moto's limit is a little lower
    assert (await journal.commit(largest)).ok
    assert await journal.step(RUN, "s") == largest


async def test_a_header_over_400_kb_is_refused_by_dynamodb_and_names_its_run(aws: AwsPlace) -> None:
    journal = aws.journal()
    me = await driven(journal)
    with pytest.raises(OutputTooLarge) as caught:
        await journal.leave(me, Departure(status=COMPLETED, output_data=b"x" * 409_600))
    assert caught.value.run_id == RUN
    assert lease_of(await seen_now(journal)) == me


@pytest.mark.parametrize("rounds", [3, 99])
async def test_keys_left_for_later_are_asked_for_again_and_never_taken_for_gone(
    aws: AwsPlace, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(table_module, "_PAUSES_S", (0.0,) * 4)
    journal = aws.journal(over=_Unprocessed(aws.plain, rounds))
    await journal.create(header())
    if rounds == 3:
        assert await journal.due() == [header()]
    else:
        with pytest.raises(JournalUnavailable):
            await journal.due()


async def test_a_delete_that_fails_ends_the_others_and_can_be_made_again(aws: AwsPlace) -> None:
    journal = aws.journal()
    me = await driven(journal)
    await asyncio.gather(*(journal.begin(attempt(f"s#{n}"), None, me) for n in range(40)))
    children = [child async for page in journal.children(RUN) for child in page]
    aws.faulty.plan("delete_item", DENIED, when=nth(5))
    with pytest.raises(StoreMisconfigured):
        await journal.delete(RUN, children, 1)
    await journal.delete(RUN, children, 1)
    assert [page async for page in journal.children(RUN)] == []
    assert aws.faulty.counts["batch_write_item"] == 0


@pytest.mark.parametrize("verb", ["create", "acquire"])
async def test_a_claim_that_is_cancelled_ends_only_when_its_request_has(aws: AwsPlace, verb: str) -> None:
    """Only then can the canceller see whether it was made."""
    slow = _Slow(aws.plain)
    journal = aws.journal(TurnedClock(), over=slow)
    if verb == "acquire":
        await aws.journal().create(header())
    claiming = journal.create(owned(), 1000) if verb == "create" else journal.acquire(header(), claim("me"))
    task = asyncio.ensure_future(claiming)
    await slow.sent.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lease_of(await seen_now(aws.journal())).owner == "me"


class _Slow(Lent):
    """Holds requests back until it is told to send them."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.sent, self.go = asyncio.Event(), asyncio.Event()

    async def call(self, service: Any, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.sent.set()
        await self.go.wait()
        return await super().call(service, operation, request)


class _Terse(Lent):
    """Refuses without telling what stood in the way, as some that speak DynamoDB do."""

    async def call(self, service: Any, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await super().call(service, operation, request)
        except ConditionRefused as refused:
            raise ConditionRefused(refused.reasons, [None] * len(refused.items)) from None


class _Unprocessed(Lent):
    """Leaves all keys of a batch for later, some times."""

    def __init__(self, inner: Transport, rounds: int) -> None:
        super().__init__(inner)
        self._left = rounds

    async def call(self, service: Any, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation != "batch_get_item" or self._left == 0:
            return await super().call(service, operation, request)
        self._left -= 1
        return {"Responses": {}, "UnprocessedKeys": request["RequestItems"]}
