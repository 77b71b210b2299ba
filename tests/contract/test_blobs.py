"""Blob stores hold to their contract; what only a folder can get wrong is tested beside it."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durable_core.blobs import filesystem
from durable_core.blobs.base import MAX_BLOB_BYTES, BlobStore, blob_ref
from durable_core.blobs.filesystem import FilesystemBlobs
from durable_core.blobs.memory import MemoryBlobs
from durable_core.errors import CorruptRecord, DurableError, InvalidId, JournalUnavailable, StoreMisconfigured
from durable_core.stores import open_store
from durable_core.testing.blob_contract import BlobContract
from tests.system import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

REF = blob_ref("run-1", "attempt", b"data")
DAY_S = 24 * 3600


class TestMemoryBlobs(BlobContract):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return MemoryBlobs()


class TestFilesystemBlobs(BlobContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return FilesystemBlobs(tmp_path / "runs.db.blobs")


class TestPostgresBlobs(BlobContract):
    @pytest.fixture
    def blobs(self, runner: asyncio.Runner, postgres_url: str) -> Iterator[BlobStore]:
        store = open_store(postgres_url)
        runner.run(store.journal.open())
        yield store.blobs
        runner.run(store.blobs.close())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs.db.blobs"


def put(blobs: BlobStore, ref: str = REF, data: bytes = b"data") -> None:
    asyncio.run(blobs.put(ref, data))


def refs(blobs: BlobStore, *, older_than_s: float = 0) -> list[str]:
    async def listed() -> list[str]:
        return [ref async for ref in blobs.refs("run-1", older_than_s=older_than_s)]

    return asyncio.run(listed())


def runs(blobs: BlobStore) -> list[str]:
    async def listed() -> list[str]:
        return [run_id async for run_id in blobs.runs()]

    return asyncio.run(listed())


def test_a_ref_names_run_attempt_and_the_hash_of_the_stored_bytes() -> None:
    assert blob_ref("run", "attempt", b"data") == f"runs/run/attempt-{sha256(b'data').hexdigest()}"


@pytest.mark.parametrize("bad", ["", "..", "a/b", "../../tenant-b/x", ".a", "a b", "a" * 129, "a\0"])
def test_a_ref_is_not_made_of_ids_that_lead_elsewhere(bad: str) -> None:
    with pytest.raises(InvalidId):
        blob_ref(bad, "attempt", b"data")
    with pytest.raises(InvalidId):
        blob_ref("run", bad, b"data")


def test_no_folder_is_made_until_a_blob_is_put(folder: Path) -> None:
    blobs = FilesystemBlobs(folder)
    assert refs(blobs) == []
    assert runs(blobs) == []
    asyncio.run(blobs.delete(REF))
    assert not folder.exists()
    put(blobs)
    assert (folder / REF).read_bytes() == b"data"


def test_a_put_leaves_nothing_but_the_blob_and_its_deletion_nothing_at_all(folder: Path) -> None:
    blobs = FilesystemBlobs(folder)
    put(blobs)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / REF]
    asyncio.run(blobs.delete(REF))
    assert not list((folder / "runs").iterdir())


@pytest.mark.parametrize("damage", [b"dat", b"datb", b"", b"data\n"])
def test_a_changed_file_is_corrupt_and_is_not_replaced(folder: Path, damage: bytes) -> None:
    blobs = FilesystemBlobs(folder)
    put(blobs)
    (folder / REF).write_bytes(damage)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="hash"):
            asyncio.run(blobs.get(REF))
    with pytest.raises(CorruptRecord):
        put(blobs)
    assert (folder / REF).read_bytes() == damage


def test_a_changed_blob_in_memory_is_corrupt() -> None:
    blobs = MemoryBlobs()
    put(blobs)
    blobs.held[REF] = (b"other", 0)
    with pytest.raises(CorruptRecord):
        asyncio.run(blobs.get(REF))
    with pytest.raises(CorruptRecord):
        put(blobs)


def test_a_file_larger_than_any_blob_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FilesystemBlobs(folder)
    put(blobs)
    with (folder / REF).open("wb") as file:
        file.truncate(MAX_BLOB_BYTES + 1)
    monkeypatch.setattr(filesystem, "check_bytes", lambda ref, data: pytest.fail("it was read"))
    with pytest.raises(CorruptRecord, match=str(MAX_BLOB_BYTES + 1)):
        asyncio.run(blobs.get(REF))


def test_only_blobs_of_a_day_ago_are_listed_for_a_sweep(folder: Path) -> None:
    blobs = FilesystemBlobs(folder)
    old = blob_ref("run-1", "old", b"data")
    put(blobs)
    put(blobs, old)
    os.utime(folder / old, (time.time() - 2 * DAY_S,) * 2)
    assert refs(blobs, older_than_s=DAY_S) == [old]


def test_memory_tells_the_age_of_blobs_by_its_clock() -> None:
    now = [1000.0]
    blobs = MemoryBlobs(now_s=lambda: now[0])
    put(blobs)
    now[0] += DAY_S
    assert refs(blobs, older_than_s=DAY_S) == [REF]
    assert refs(blobs, older_than_s=DAY_S + 1) == []


def test_stray_files_are_not_listed_and_what_a_dead_put_left_goes_with_the_run(folder: Path) -> None:
    blobs = FilesystemBlobs(folder)
    put(blobs)
    run_folder = (folder / REF).parent
    dead, live = run_folder / ".put-dead", run_folder / ".put-live"
    for path in (dead, live, run_folder / "notes.txt"):
        path.write_bytes(b"x")
    os.utime(dead, (time.time() - 2 * DAY_S,) * 2)
    (folder / "runs" / "notes.txt").write_bytes(b"x")
    (folder / "runs" / "empty").mkdir()
    (folder / "runs" / "not an id").mkdir()
    assert refs(blobs) == [REF]
    assert runs(blobs) == ["run-1"]
    asyncio.run(blobs.delete(REF))
    assert not dead.exists()
    assert live.exists()


def test_what_a_dead_put_left_goes_also_when_its_run_has_no_blob(folder: Path) -> None:
    run_folder = (folder / REF).parent
    run_folder.mkdir(parents=True)
    dead, live = run_folder / ".put-dead", run_folder / ".put-live"
    for path in (dead, live):
        path.write_bytes(b"x")
    os.utime(dead, (time.time() - 2 * DAY_S,) * 2)
    assert refs(FilesystemBlobs(folder)) == []
    assert (dead.exists(), live.exists()) == (False, True)


def test_a_run_folder_that_links_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / Path(REF).name
    secret.write_bytes(b"data")
    (folder / "runs").mkdir(parents=True)
    (folder / "runs" / "run-1").symlink_to(outside)
    blobs = FilesystemBlobs(folder)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: put(blobs),
        lambda: asyncio.run(blobs.get(REF)),
        lambda: asyncio.run(blobs.delete(REF)),
        lambda: refs(blobs),
    )
    for verb in verbs:
        with pytest.raises(StoreMisconfigured, match="leads out"):
            verb()
    assert secret.read_bytes() == b"data"


def test_a_blob_is_synced_before_its_name_and_its_name_before_put_returns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(handle: int) -> None:
        order.append(name_of(handle, folder.parent).partition("-")[0])
        real_fsync(handle)

    def link(source: Path, target: Path) -> None:
        order.append("link")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    put(FilesystemBlobs(folder))
    assert order[-4:] == ["runs", ".put", "link", "run"]
    assert "runs.db.blobs" in order[:-4]
    order.clear()
    put(FilesystemBlobs(folder))
    assert order[-1] == "run"


def test_a_file_system_without_hard_links_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    blobs = FilesystemBlobs(folder)
    put(blobs)
    put(blobs)
    assert asyncio.run(blobs.get(REF)) == b"data"
    (folder / REF).write_bytes(b"other")
    with pytest.raises(CorruptRecord):
        put(blobs)


@pytest.mark.parametrize(
    ("number", "expected", "remedy"),
    [
        (errno.ENOSPC, JournalUnavailable, "Make room"),
        (errno.EIO, JournalUnavailable, "disk"),
        (errno.EROFS, StoreMisconfigured, "read and write"),
        (errno.EACCES, StoreMisconfigured, "read and write"),
    ],
)
def test_a_disk_that_refuses_is_named_with_a_remedy_and_leaves_no_blob(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[DurableError], remedy: str
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    blobs = FilesystemBlobs(folder)
    put(blobs, blob_ref("run-1", "earlier", b"data"))
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(expected, match=remedy) as caught:
        put(blobs)
    assert str(folder) in str(caught.value)
    assert not (folder / REF).exists()
    assert not list(folder.rglob(".put-*"))


def test_a_file_in_place_of_the_folder_is_a_misconfigured_store(folder: Path) -> None:
    folder.write_text("not a folder")
    blobs = FilesystemBlobs(folder)
    with pytest.raises(StoreMisconfigured):
        put(blobs)
    with pytest.raises(StoreMisconfigured):
        asyncio.run(blobs.get(REF))


def test_a_folder_that_may_not_be_written_is_a_misconfigured_store(folder: Path, tmp_path: Path) -> None:
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    folder.mkdir(mode=0o555)

    blobs = FilesystemBlobs(folder)
    as_root = os.geteuid() == 0
    if as_root:  # root may write anywhere, so the attempt is somebody else's
        os.seteuid(65534)
    try:
        with pytest.raises(StoreMisconfigured, match="read and write") as caught:
            put(blobs)
    finally:
        if as_root:
            os.seteuid(0)
    assert str(folder) in str(caught.value)
    assert not list(folder.iterdir())
