"""Manifests for tests: in a file or in S3, whole or in parts, by connections that can fail."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core import Jsonl
from durable_core.aws import ranges
from durable_core.aws.ranges import RangedObject, bucket_and_key
from durable_core.manifest_lines import ManifestFile
from tests.cloud import Cloud
from tests.cloud_faults import FaultyTransport


class Home:
    """A place for one manifest.

    Args:
        folder: Of the test.
        cloud: Where it is in S3; None: it is a file.
    """

    def __init__(self, folder: Path, cloud: Cloud | None) -> None:
        self._cloud = cloud
        self._file = folder / "m.jsonl"
        self.path = (
            f"s3://{cloud.shared_bucket}/{uuid.uuid4().hex}/in%20may.jsonl" if cloud else str(self._file)
        )

    def put(self, data: bytes) -> Home:
        if self._cloud is None:
            self._file.write_bytes(data)
        else:
            self._ask("put_object", Body=data)
        return self

    def remove(self) -> None:
        if self._cloud is None:
            self._file.unlink()
        else:
            self._ask("delete_object")

    def items(self) -> list[Any]:
        return list(Jsonl(self.path))

    def _ask(self, operation: str, **more: object) -> None:
        bucket, key = bucket_and_key(self.path)
        assert self._cloud is not None
        self._cloud.ask("s3", operation, {"Bucket": bucket, "Key": key, **more})


def faulty_manifests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FaultyTransport]]:
    """A fixture: the transports by which manifests in S3 are read, in the order in which they were opened."""
    opened: list[FaultyTransport] = []
    real = ranges.open_transport

    def open_faulty(**options: Any) -> FaultyTransport:
        opened.append(FaultyTransport(real(**options)))
        return opened[-1]

    monkeypatch.setattr(ranges, "open_transport", open_faulty)
    yield opened
    for one in opened:
        one.close_now()


def in_parts_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Lets manifests be read in parts of so many bytes."""
    for source in (ManifestFile, RangedObject):
        monkeypatch.setattr(source, "part_bytes", size)
