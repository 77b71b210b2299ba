"""Blobs as files in a folder: what SQLite uses, beside its own file."""

from __future__ import annotations

import asyncio
import errno
import os
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from durable_core.blobs.base import (
    MAX_BLOB_BYTES,
    RUNS,
    BlobStore,
    check_bytes,
    check_ref,
    check_run_id,
    is_ref,
    is_run_id,
    missing,
    too_large,
)
from durable_core.errors import DurableError, JournalUnavailable, StoreMisconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from durable_core.blobs.base import Owners

_TEMPORARY = ".put-"
_STALE_S = 24 * 3600
_TRIES = 20
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class FilesystemBlobs(BlobStore):
    """Blobs in a folder, which is made when the first one is put.

    Args:
        folder: Where they are; nothing outside it is ever touched.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rooted = False

    async def put(self, ref: str, data: bytes) -> None:
        """Store a blob."""
        path = self._path(ref)
        check_bytes(ref, data)
        await asyncio.to_thread(self._put, ref, path, data)

    async def get(self, ref: str) -> bytes:
        """The bytes of a blob."""
        path = self._path(ref)
        # In a box: until the loop's next turn the thread's reply is held by whoever woke the caller.
        reply = await asyncio.to_thread(lambda: [self._get(ref, path)])
        return reply.pop()

    def read(self, ref: str) -> bytes:
        """The bytes of a blob, for plain code."""
        return self._get(ref, self._path(ref))

    async def delete(self, ref: str) -> None:
        """Remove a blob."""
        path = self._path(ref)
        await asyncio.to_thread(self._delete, path)

    async def refs(self, run_id: str, *, older_than_s: float = 0, of: Owners = RUNS) -> AsyncIterator[str]:
        """The refs of a run's blobs."""
        check_run_id(run_id)
        for ref in await asyncio.to_thread(self._refs, run_id, older_than_s, of):
            yield ref

    async def runs(self) -> AsyncIterator[str]:
        """The ids of the runs that have blobs."""
        for run_id in await asyncio.to_thread(self._run_ids):
            if await asyncio.to_thread(self._refs, run_id, 0):
                yield run_id

    def _path(self, ref: str) -> Path:
        check_ref(ref)
        return self.folder / ref

    def _put(self, ref: str, path: Path, data: bytes) -> None:
        with self._explained(path):
            for left in reversed(range(_TRIES)):
                self._make_folder(path.parent)
                try:
                    _write(path, data)
                    return
                except FileExistsError:
                    break
                except FileNotFoundError:  # a delete took the run's folder, empty until now: make it again
                    if left == 0:
                        raise
            # Somebody's put of the same bytes came first; it may have died before its name was durable.
            check_bytes(ref, path.read_bytes())
            _sync_folder(path.parent)

    def _get(self, ref: str, path: Path) -> bytes:
        with self._explained(path):
            self._stay_inside(path.parent)
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size > MAX_BLOB_BYTES:
                        raise too_large(ref, size)
                    data = file.read(size + 1)
            except FileNotFoundError as error:
                raise missing(ref, str(self.folder)) from error
            check_bytes(ref, data)
            return data

    def _delete(self, path: Path) -> None:
        with self._explained(path):
            self._stay_inside(path.parent)
            path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # another delete may take the folder at any moment
                _remove_last_temporaries(path.parent)
                try:
                    path.parent.rmdir()
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                        raise
            with suppress(FileNotFoundError):
                _sync_folder(path.parent if path.parent.exists() else path.parent.parent)

    def _refs(self, run_id: str, older_than_s: float, of: Owners = RUNS) -> list[str]:
        folder = self.folder / of / run_id
        latest_s = time.time() - older_than_s
        found = []
        with self._explained(folder), suppress(FileNotFoundError):
            self._stay_inside(folder)
            for entry in folder.iterdir():
                ref = f"{of}/{run_id}/{entry.name}"
                with suppress(FileNotFoundError):  # deleted meanwhile
                    if is_ref(ref) and entry.stat().st_mtime <= latest_s:
                        found.append(ref)
            if not found:  # nobody deletes a blob of a run whose only put died
                _remove_last_temporaries(folder)
        return found

    def _run_ids(self) -> list[str]:
        folder = self.folder / RUNS
        with self._explained(folder), suppress(FileNotFoundError):
            return [entry.name for entry in folder.iterdir() if is_run_id(entry.name) and entry.is_dir()]
        return []

    def _make_folder(self, run_folder: Path) -> None:
        runs = run_folder.parent
        runs.mkdir(parents=True, exist_ok=True)
        if not self._rooted:
            for folder in (self.folder, *self.folder.absolute().parents[:1]):
                _sync_folder(folder)
            self._rooted = True
        self._stay_inside(run_folder)
        with suppress(FileExistsError):  # exist_ok would look again, and a delete may have taken it by then
            run_folder.mkdir()
        # Even if it was there: whoever made it may not have synced its name yet, or may have died before.
        _sync_folder(runs)

    def _stay_inside(self, run_folder: Path) -> None:
        """Refuse a folder of a run that is a link to somewhere else."""
        if not run_folder.resolve().is_relative_to(self.folder.resolve()):
            raise StoreMisconfigured(
                f"{run_folder} leads out of the blob folder {self.folder}",
                remedy="Remove the link in the blob folder",
            )

    @contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        try:
            yield
        except DurableError:
            raise
        except OSError as error:
            what = f"the blob folder {self.folder} can't be used: {error.strerror or error} ({path})"
            if error.errno in _NOT_PERMITTED:
                raise StoreMisconfigured(
                    what, remedy="Make it a folder that this user may read and write, or choose another store"
                ) from error
            remedy = "Make room on its disk" if error.errno in _NO_ROOM else "Check the disk it is on"
            raise JournalUnavailable(what, remedy=f"{remedy}, then resume the run") from error


def _remove_last_temporaries(folder: Path) -> None:
    """Removes what puts that died have left, once no blob is there any more: looking costs nothing before."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_ref(f"runs/{folder.name}/{entry.name}"):
                return
            with suppress(FileNotFoundError):
                stale = entry.name.startswith(_TEMPORARY) and entry.stat().st_mtime < time.time() - _STALE_S
                if stale:  # a live one is younger
                    (folder / entry.name).unlink()


def _write(path: Path, data: bytes) -> None:
    temporary = path.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, not a rename: it never replaces what is there.
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
            # No hard links here. Only a put of the same bytes can come between: the name holds their hash.
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
