"""Making the table and the bucket, or what they lack; what is as it should be isn't touched.

Each part looks at what there is and gives the changes that are needed, one after the other, so that a change
is made before the next look. Nothing is ever removed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from durable_core.aws.provision_bucket import BucketChanges
from durable_core.aws.provision_table import TableChanges
from durable_core.errors import DurableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.aws.transport import Transport


def provision(
    transport: Transport,
    table: str,
    bucket: str,
    *,
    prefix: str = "",
    region: str | None = None,
    tls_only: bool = True,
    dry_run: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Makes what a store on AWS needs; blocking.

    Args:
        transport: To AWS.
        table: Name of the table.
        bucket: Name of the bucket.
        prefix: Of the objects in the bucket.
        region: Where a bucket is made.
        tls_only: Whether the bucket is to refuse requests without TLS.
        dry_run: Whether it only looks.
        sleep: Waits a number of seconds.

    Returns:
        The changes that were needed, for people.

    Raises:
        StoreMisconfigured: The table has another shape, or the bucket deletes what is in it by age.
        DurableError: AWS refused.
    """
    told = []
    parts = (
        TableChanges(transport, table, sleep),
        BucketChanges(transport, bucket, prefix, region, tls_only=tls_only),
    )
    for part in parts:
        for change in part.changes():
            told.append(change.text)
            if dry_run:
                continue
            try:
                transport.call_now(change.service, change.operation, change.request)
            except DurableError:
                if not change.is_there():  # two were at it at once
                    raise
    return told
