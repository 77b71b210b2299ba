"""Powertools idempotency over DynamoDB: requests for one call that is remembered."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import boto3
from answering import answer
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

_output = "x" * 198


def calls(endpoint: str, calls: int) -> dict[str, Any]:
    """So many new calls against a table of their own; gives the requests of each kind."""
    client = boto3.client("dynamodb", endpoint_url=endpoint)
    table = f"powertools-{os.getpid()}-{time.monotonic_ns()}"
    client.create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    layer = DynamoDBPersistenceLayer(table_name=table, boto3_client=client)
    seen = Counter[str]()
    client.meta.events.register("before-send.dynamodb", lambda request, **_: seen.update([_op(request)]))

    @idempotent_function(data_keyword_argument="index", persistence_store=layer, config=IdempotencyConfig())
    def draw(index: int) -> str:
        return _output

    began = time.perf_counter()
    for index in range(calls):
        draw(index=index)
    return {"took_s": time.perf_counter() - began, "requests": dict(seen)}


def _op(request: Any) -> str:
    target = request.headers.get("X-Amz-Target", b"")
    return (target.decode() if isinstance(target, bytes) else str(target)).rpartition(".")[2]


if __name__ == "__main__":
    os.environ.setdefault("POWERTOOLS_TRACE_DISABLED", "1")
    answer("aws-lambda-powertools", "DynamoDB (moto)", {"calls": calls})
