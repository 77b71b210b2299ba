"""Items read from JSON lines: the same from a file and from S3."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from durable_core import Jsonl
from durable_core.aws import ranges
from durable_core.aws.ranges import RangedObject
from durable_core.errors import JournalUnavailable, ManifestError, UsageError
from durable_core.manifest_lines import MAX_LINE_BYTES, LineRange, ManifestFile
from tests.cloud import Cloud
from tests.cloud_faults import DENIED, EXPIRED, SERVER_ERROR, UNREACHABLE, FaultyTransport
from tests.manifests import Home, faulty_manifests, in_parts_of


class Doc(BaseModel):
    id: str


@pytest.fixture(params=["file", "s3"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    if request.param == "file":
        return Home(tmp_path, None)
    cloud: Cloud = request.getfixturevalue("cloud")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", cloud.endpoint)
    return Home(tmp_path, cloud)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FaultyTransport]]:
    yield from faulty_manifests(monkeypatch)


def test_it_can_be_read_again_and_again(home: Home) -> None:
    manifest = Jsonl(home.put(b'1\r\n\n"\xc3\xbc"\n[2]').path)
    assert list(manifest) == [1, "ü", [2]]
    assert list(manifest) == [1, "ü", [2]]
    assert repr(manifest) == f"Jsonl({home.path!r})"


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n", b"\r\n", b" \t "], ids=ascii)
def test_blank_lines_are_no_items(data: bytes, home: Home) -> None:
    assert home.put(data).items() == []
    assert list(Jsonl(home.path).ranges(1)) == []


def test_lines_are_validated(home: Home) -> None:
    found = iter(Jsonl(home.put(b'{"id": "a"}\n{"id": 5}\n').path, type=Doc))
    assert next(found) == Doc(id="a")
    with pytest.raises(ManifestError, match="line 2 of the manifest"):
        next(found)
    found.close()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no UTF-8: invalid start byte at byte 0"),
        ("1".encode("utf-16-le"), "no JSON"),
        (b"Infinity", "Infinity is not JSON"),
        (b"1 2", "no JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": [1e999]}', "1e999 is larger than any float"),
        (b"-1e400", "-1e400 is larger than any float"),
        (b"[" * 100_000, "no JSON"),
    ],
    ids=ascii,
)
def test_a_line_that_is_no_item_is_named(line: bytes, told: str, tmp_path: Path) -> None:
    home = Home(tmp_path, None).put(b"1\n" + line + b"\n")
    with pytest.raises(ManifestError, match=f"line 2 of the manifest .*{told}"):
        home.items()


def test_the_mark_of_some_editors_is_passed_over_at_the_beginning_only(tmp_path: Path) -> None:
    home = Home(tmp_path, None).put(b"\xef\xbb\xbf1\n2\n")
    assert home.items() == [1, 2]
    with pytest.raises(ManifestError, match=r"line 2 .* no JSON"):
        home.put(b"1\n\xef\xbb\xbf2\n").items()


def test_a_line_that_never_ends_is_not_read_to_its_end(home: Home, tmp_path: Path) -> None:
    home.put(b"7\n" + bytes(MAX_LINE_BYTES * 3 // 2))
    found = iter(Jsonl(home.path))
    assert next(found) == 7
    with pytest.raises(ManifestError, match=r"line 2 .* more than 16777216 bytes"):
        next(found)


@pytest.mark.parametrize("end", [b"", b"\n"], ids=ascii)
def test_the_longest_line_is_read_and_one_byte_more_is_refused(end: bytes, home: Home) -> None:
    line = b'"' + b"x" * (MAX_LINE_BYTES - 2) + b'"'
    (found,) = home.put(line + end).items()
    assert len(found) == MAX_LINE_BYTES - 2
    with pytest.raises(ManifestError, match=r"line 1 .* more than 16777216 bytes"):
        home.put(line + b" " + end).items()


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="can't be read: Is a directory"):
        list(Jsonl(tmp_path))
    with pytest.raises(ManifestError, match="can't be read: No such file"):
        list(Jsonl(tmp_path / "none"))
    with pytest.raises(ManifestError, match=r"can't be read: .*null"):
        list(Jsonl("nu\0ll"))
    with pytest.raises(ManifestError, match="no regular file"):
        list(Jsonl("/dev/null"))


@pytest.mark.parametrize(
    "path",
    [
        "https://bucket/key",
        "s3://",
        "s3://bucket",
        "s3://key:hunter2@b/k",
        "s3://b/k?x=1",
        Path("s3://b/k"),
        5,
    ],
    ids=str,
)
def test_what_is_no_place_of_a_manifest_is_refused(path: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Jsonl(path)
    assert "hunter2" not in str(caught.value)


# ---- Changed, gone, forbidden ----


@pytest.mark.parametrize("data", [b"1\n2\n4\n", b"1\n2\n3\n4\n", b"1\n", b""], ids=ascii)
def test_a_manifest_that_is_changed_while_it_is_read_gives_nothing_more(
    data: bytes, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts_of(monkeypatch, 2)
    found = iter(Jsonl(home.put(b"1\n2\n3\n").path))
    assert next(found) == 1
    home.put(data)
    with pytest.raises(ManifestError, match="was changed while it was read"):
        next(found)


def test_a_manifest_that_is_gone_while_it_is_read_is_told(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts_of(monkeypatch, 2)
    found = iter(Jsonl(home.put(b"1\n2\n3\n").path))
    assert next(found) == 1
    home.remove()
    with pytest.raises(ManifestError, match=f"the manifest {home.path} (isn't there|can't be read: No such)"):
        next(found)
    with pytest.raises(ManifestError, match=home.path):
        home.items()


@pytest.mark.parametrize("operation", ["head_object", "get_object"])
@pytest.mark.parametrize("fault", [DENIED, EXPIRED])
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_a_manifest_that_may_not_be_read_is_told(
    fault: str, operation: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.put(b"1\n")
    real = ranges.open_transport

    def denied(**options: Any) -> FaultyTransport:
        made = FaultyTransport(real(**options))
        made.plan(operation, fault)
        return made

    monkeypatch.setattr(ranges, "open_transport", denied)
    told = "s3:GetObject" if fault == DENIED else "Renew them"
    with pytest.raises(ManifestError, match=f"the manifest {home.path} can't be read: .*{told}"):
        home.items()


@pytest.mark.parametrize("fault", [SERVER_ERROR, UNREACHABLE])
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_a_read_that_s3_did_not_answer_is_made_again(
    fault: str, home: Home, faulty: list[FaultyTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts_of(monkeypatch, 2)
    found = iter(Jsonl(home.put(b"1\n2\n3\n").path))
    assert next(found) == 1
    faulty[0].plan("get_object", fault)
    with pytest.raises(JournalUnavailable):
        next(found)
    assert list(found) == [2, 3]
    assert len(faulty) == 1


# ---- In parts, and in ranges ----


def drawn(seed: int) -> tuple[bytes, list[Any]]:
    """Lines of all kinds, and the items in them."""
    chance = random.Random(seed)
    lines, items = [], []
    for number in range(chance.randrange(1, 40)):
        if chance.random() < 0.3:
            lines.append(chance.choice([b"", b"  ", b"\r"]))
        else:
            items.append({"n": number, "text": "ü" * chance.randrange(30)})
            lines.append(f'{{"n": {number}, "text": "{items[-1]["text"]}"}}'.encode())
    return b"\n".join(lines) + (b"\n" if chance.random() < 0.5 else b""), items


@pytest.mark.parametrize("part", [1, 7, 64, 1000])
def test_parts_of_any_size_give_the_same_items(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts_of(monkeypatch, part)
    for seed in range(20):
        data, items = drawn(seed)
        assert Home(tmp_path, None).put(data).items() == items


@pytest.mark.parametrize("items_each", [1, 2, 7, 100])
def test_ranges_have_every_item_once_and_in_order(
    items_each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts_of(monkeypatch, 50)
    for seed in range(20):
        data, items = drawn(seed)
        manifest = Jsonl(Home(tmp_path, None).put(data).path)
        found = list(manifest.ranges(items_each))
        assert [one for among in found for one in manifest.read(among)] == items
        assert all(among.items == items_each for among in found[:-1])
        assert sum(among.items for among in found) == len(items)
        for among in found:
            assert data[: among.start].count(b"\n") + 1 == among.line
            assert data[among.start - 1 : among.start] in (b"", b"\n")
        for one, following in pairwise(found):
            assert one.start + one.size_bytes == following.start


def test_a_range_is_read_by_another_process_and_names_lines_by_their_numbers(home: Home) -> None:
    home.put(b"1\n\n2\n3\nbroken\n5\n")
    first, second, third = Jsonl(home.path).ranges(2)
    assert second == LineRange(5, 9, 4, 2, second.version)
    assert list(Jsonl(home.path).read(first)) == [1, 2]
    assert list(Jsonl(home.path).read(third)) == [5]
    with pytest.raises(ManifestError, match="line 5 of the manifest"):
        list(Jsonl(home.path).read(second))


def test_only_the_range_is_read(home: Home, faulty: list[FaultyTransport]) -> None:
    home.put(b"1\n22\n333\n4\n")
    among = list(Jsonl(home.path).ranges(1))[2]
    assert list(Jsonl(home.path).read(among)) == [333]
    if home.path.startswith("s3://"):
        (asked,) = faulty[-1].requests("get_object")
        assert asked["Range"] == "bytes=5-8"


def test_a_range_of_another_version_is_refused(home: Home) -> None:
    (among,) = Jsonl(home.put(b"1\n2\n").path).ranges(5)
    home.put(b"1\n2\n3\n")
    with pytest.raises(ManifestError, match="was changed"):
        list(Jsonl(home.path).read(among))


def test_a_fill_reads_and_nothing_else_does(
    home: Home, monkeypatch: pytest.MonkeyPatch, faulty: list[FaultyTransport]
) -> None:
    in_parts_of(monkeypatch, 4)
    found = iter(Jsonl(home.put(b"1\n2\n3\n4\n5").path))
    reads: list[int] = []
    for source in (ManifestFile, RangedObject):
        real = source.read
        monkeypatch.setattr(
            source, "read", lambda self, *part, real=real: (reads.append(part[0]), real(self, *part))[1]
        )
    got = []
    for filled in (2, 2, 1):
        assert found.is_dry
        found.fill()
        before = list(reads)
        for _ in range(filled):
            assert not found.is_dry
            got.append(next(found))
        assert reads == before
    assert got == [1, 2, 3, 4, 5]
    assert reads == [0, 4, 8]
    with pytest.raises(StopIteration):
        next(found)


@pytest.mark.parametrize("items_each", [0, -1, 1.5, True], ids=str)
def test_a_range_has_at_least_one_item(items_each: Any) -> None:
    with pytest.raises(UsageError, match="items_each"):
        Jsonl("m.jsonl").ranges(items_each)
