"""Items read from a file of JSON lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from durable_core import Jsonl
from durable_core.errors import ManifestError
from durable_core.manifest import MAX_LINE_BYTES


class Doc(BaseModel):
    id: str


def test_it_can_be_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'1\r\n\n"\xc3\xbc"\n[2]')
    manifest = Jsonl(path)
    assert list(manifest) == [1, "ü", [2]]
    assert list(manifest) == [1, "ü", [2]]
    assert repr(manifest) == f"Jsonl({str(path)!r})"


def test_an_empty_file_has_no_items(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_bytes(b"\n \n")
    assert list(Jsonl(tmp_path / "m.jsonl")) == []


def test_lines_are_validated(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"id": "a"}\n{"id": 5}\n')
    found = iter(Jsonl(tmp_path / "m.jsonl", type=Doc))
    assert next(found) == Doc(id="a")
    with pytest.raises(ManifestError, match="line 2 of the manifest"):
        next(found)


@pytest.mark.parametrize("line", [b"{", b"\xff", b"Infinity", b"1 2", b'{"a": NaN}'], ids=ascii)
def test_a_line_that_is_no_json_is_named(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_bytes(b"1\n" + line + b"\n")
    with pytest.raises(ManifestError, match="line 2 of the manifest"):
        list(Jsonl(tmp_path / "m.jsonl"))


def test_a_line_that_never_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_LINE_BYTES * 3)  # no line's end anywhere
    with pytest.raises(ManifestError, match="more than 16777216 bytes"):
        list(Jsonl(path))


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="can't be read: Is a directory"):
        list(Jsonl(tmp_path))
