"""What a checkpoint costs on DynamoDB: write units and requests a save, beside LangGraph's DynamoDBSaver.

    python scripts/bench/checkpoint_units.py              makes .venv-langgraph-aws for the peer, once
    python scripts/bench/checkpoint_units.py --no-peer    ours only

Both save the same states into tables of one moto server, which counts what arrives: a write unit for each
started KiB of an item that is put or deleted, and two for each in a transaction, also of one that is only
looked at, as AWS reckons. No index is projected by either. Figures are counts, the same on every machine.
"In a run" are the saves of who drives one: in a transaction with a look at the run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __package__ in (None, ""):  # started as a file: the checkout isn't on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.states import state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT: Final = Path(__file__).resolve().parents[2]
PEER: Final = "langgraph-checkpoint-aws==1.2.6"
SIZES: Final = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000}
SAVES: Final = 20
KEPT: Final = 5
REGION: Final = "us-east-1"
_CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",  # moto's: it takes any
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Counting:
    """moto, and what it was sent.

    Attributes:
        seen: Requests by operation, and `units`.
    """

    def __init__(self) -> None:
        from moto import server

        app: Any = server
        self._moto: Any = app.DomainDispatcherApplication(app.create_backend_app)
        self._sizes: dict[str, int] = {}
        self.seen: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Counts a request, and hands it on."""
        operation = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")[2]
        if operation:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = BytesIO(body)
            self._count(operation, json.loads(body))
        answer: Iterable[bytes] = self._moto(environ, start_response)
        return answer

    def _count(self, operation: str, request: dict[str, Any]) -> None:
        self.seen[operation] += 1
        if operation == "PutItem":
            self.seen["units"] += self._put(request["TableName"], request["Item"])
        elif operation == "DeleteItem":
            key = _key(request["TableName"], request["Key"])
            self.seen["units"] += _units(self._sizes.pop(key, 0))
        elif operation == "BatchWriteItem":
            for table, writes in request["RequestItems"].items():
                for write in writes:
                    self.seen["units"] += self._put(table, write["PutRequest"]["Item"])
        elif operation == "TransactWriteItems":
            for one in request["TransactItems"]:
                ((action, write),) = one.items()
                self.seen["units"] += 2 * self._in_a_transaction(action, write)
        elif operation == "UpdateItem":
            raise RuntimeError(f"the benchmark can't reckon what {operation} costs")

    def _put(self, table: str, item: dict[str, Any]) -> int:
        size = sum(len(name.encode()) + _size(value) for name, value in item.items())
        self._sizes[_key(table, item)] = size
        return _units(size)

    def _in_a_transaction(self, action: str, write: dict[str, Any]) -> int:
        if action == "Put":
            return self._put(write["TableName"], write["Item"])
        if action == "ConditionCheck":
            return _units(self._sizes[_key(write["TableName"], write["Key"])])
        raise RuntimeError(f"the benchmark can't reckon what {action} costs in a transaction")


def _key(table: str, item: dict[str, Any]) -> str:
    return json.dumps([table, *(item.get(name) for name in ("pk", "sk", "PK", "SK"))])


def _units(size: int) -> int:
    return max(1, -(-size // 1024))


def _size(value: dict[str, Any]) -> int:
    ((kind, held),) = value.items()
    if kind == "S":
        return len(held.encode())
    if kind == "N":
        return len(held) // 2 + 1
    if kind == "B":
        return len(base64.b64decode(held))
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(part) for name, part in held.items())
    return 3 + sum(1 + _size(part) for part in held) if kind == "L" else 1


def ours(
    endpoint: str, table: str, size_bytes: int, retention: int, begin: Callable[[], None], *, in_run: bool
) -> None:
    """Saves as often as asked for, after one save that makes the session."""
    from durable_core import Checkpointer, CheckpointingConfig
    from durable_core.aws.table import table_request
    from durable_core.aws.transport import open_transport
    from durable_core.checkpoints.checkpoint import drafted
    from durable_core.stores import open_store
    from durable_core.testing.samples import driven

    transport = open_transport(region=REGION, endpoint=endpoint, use_async=False)
    transport.call_now("dynamodb", "create_table", table_request(table))
    url = f"dynamodb://{table}?bucket=none&region={REGION}&endpoint={endpoint}"
    store = open_store(url, transport=transport)
    checkpointer = Checkpointer(CheckpointingConfig(enabled=True, retention_per_session=retention), store)
    lease = asyncio.run(driven(store.journal)) if in_run else None
    made = state(size_bytes)
    for turn in range(KEPT + 1 + SAVES):
        if turn == KEPT + 1:
            begin()
        checkpointer.write(drafted("bench", "agent", "step", {**made, "turn": turn}, None), lease)
    transport.close_now()


def peer(endpoint: str, table: str, size_bytes: int, compressed: bool) -> None:
    """The same, by LangGraph; run in its own environment."""
    import boto3
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph_checkpoint_aws import DynamoDBSaver

    keys = [("PK", "HASH"), ("SK", "RANGE")]
    boto3.client("dynamodb", endpoint_url=endpoint, region_name=REGION).create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
        KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys],
    )
    saver = DynamoDBSaver(
        table, region_name=REGION, endpoint_url=endpoint, enable_checkpoint_compression=compressed
    )
    made = state(size_bytes)
    for turn in range(1 + SAVES):
        if turn == 1:
            print("begin", flush=True)
            sys.stdin.readline()
        values = {"state": {**made, "turn": turn}}
        checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": {"state": turn}}
        config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        saver.put(config, checkpoint, {"source": "loop", "step": turn}, {"state": turn})


def _peer_counts(
    python: Path, app: Counting, endpoint: str, size_bytes: int, *, compressed: bool
) -> Counter[str]:
    table = f"peer-{size_bytes}-{compressed}"
    command = [str(python), __file__, "--as-peer", endpoint, table, str(size_bytes), str(int(compressed))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdin is None or process.stdout.readline() != "begin\n":
            raise RuntimeError("the peer ended; what it said is above")
        app.seen.clear()
        process.stdin.write("\n")
        process.stdin.flush()
        if process.wait() != 0:
            raise RuntimeError("the peer failed; what it said is above")
    return app.seen.copy()


def measure(python: Path | None) -> dict[str, dict[str, Counter[str]]]:
    """What each saver sent for its saves, by size of the state."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    app = Counting()
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    found: dict[str, dict[str, Counter[str]]] = {}
    for name, size_bytes in SIZES.items():
        counts: dict[str, Counter[str]] = {}
        for what, retention, in_run in (
            ("ours", 0, False),
            (f"ours, {KEPT} kept", KEPT, False),
            ("ours, in a run", 0, True),
        ):
            table = f"ours-{size_bytes}-{retention}-{in_run}"
            ours(endpoint, table, size_bytes, retention, app.seen.clear, in_run=in_run)
            counts[what] = app.seen.copy()
        if python is not None:
            for what, compressed in (("LangGraph", False), ("LangGraph, compressed", True)):
                counts[what] = _peer_counts(python, app, endpoint, size_bytes, compressed=compressed)
        found[name] = counts
    server.shutdown()
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="What a checkpoint costs on DynamoDB.")
    parser.add_argument("--no-peer", action="store_true", help="without LangGraph, and without the network")
    parser.add_argument(
        "--peer-venv", type=Path, default=ROOT / ".venv-langgraph-aws", help="the peer's environment"
    )
    options = parser.parse_args(arguments)
    from scripts.bench.peers.asking import peer_python

    os.environ.update(_CREDENTIALS)
    python = None if options.no_peer else peer_python(options.peer_venv, PEER)
    print(f"{'state':<8} {'saver':<24} {'units':>7}  requests a save")
    for name, counts in measure(python).items():
        for what, seen in counts.items():
            units = seen.pop("units") / SAVES
            sent = ", ".join(f"{count / SAVES:g} {operation}" for operation, count in sorted(seen.items()))
            print(f"{name:<8} {what:<24} {units:>7.2f}  {sent}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-peer"]:
        peer(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1")
    else:
        main()
