"""Values that codecs get wrong, strategies over all that ours stores, and a comparison that sees types."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Generic, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, RootModel, computed_field
from pydantic_core import TzInfo

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)
    WHEN = date(2024, 2, 29)
    ALSO_RED = "red"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mood(enum.StrEnum):
    GOOD = "good"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Outer:
    class Inner(enum.Enum):
        ONE = 1


@dataclass
class Point:
    x: int
    y: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    name: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summed:
    parts: list[int]
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.parts))


@dataclass
class Holder:
    value: Any = None
    points: list[Point] = field(default_factory=list)


@pydantic.dataclasses.dataclass
class Checked:
    n: int
    alias: str = pydantic.Field(default="x", alias="theAlias")


class Item(BaseModel):
    sku: str
    price: Decimal = Decimal("0.00")
    at: datetime | None = None


class SubItem(Item):
    extra_field: bytes = b""


class Aliased(BaseModel):
    model_config = ConfigDict(frozen=True)
    doc_id: int = Field(alias="docId")
    hidden: str = Field(default="none", exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> int:
        return self.doc_id * 2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int = 1


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    id: UUID
    where: Path
    raw: bytes = b""


class Numbers(RootModel[list[int]]):
    pass


class Web(BaseModel):
    url: HttpUrl
    seen: set[tuple[int, int]] = Field(default_factory=set)


class Anything(BaseModel):
    value: Any = None
    child: Anything | None = None
    items: list[Item] = Field(default_factory=list)


@dataclass
class Link:
    next: Any = None


def _nested_classes(levels: int) -> type:
    found: type = Point
    for level in range(levels):
        found = dataclasses.make_dataclass(f"Level{level}", [("inner", found | None, None)])
    return found


Outermost = _nested_classes(30)


@dataclass
class Crowded:
    """Its schema takes far more stack to build than that of a simple class."""

    next: Any = None
    more: Outermost | None = None  # type: ignore[valid-type]


class Chain(BaseModel):
    next: Any = None


class TypedChain(BaseModel):
    next: TypedChain | None = None


class Page(BaseModel, Generic[T]):
    items: list[T]
    total: int = Field(default=0, alias="totalCount")


NAN = float("nan")
BERLIN = ZoneInfo("Europe/Berlin")
A_UUID = UUID("12345678-1234-5678-1234-567812345678")
A_MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001  without a zone on purpose

ODD_TEXTS: dict[str, str] = {
    "empty": "",
    "nul": "a\0b",
    "controls": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "quotes": "\"'\\/`",
    "escape lookalike": "\\ud83d\\u0000",
    "dollar": "$",
    "tag lookalike": '{"$":"int","v":"ff"}',
    "line separators": "\u2028\u2029\u0085\r\n",
    "bom": "\ufeff",
    "composed": "é",
    "decomposed": "e\u0301",
    "astral": "😀",
    "last": "\U0010ffff\uffff",
    "high": "\ud83d",
    "low": "\ude00",
    "high low": "\ud83d\ude00",
    "low high": "\ude00\ud83d",
    "high high low": "\ud83d\ud83d\ude00",
    "high astral low": "\ud83d😀\ude00",
    "many pairs": "\ud83d\ude00x\ud83d\ude00\ud83d\ude00",
    "file name": b"caf\xe9\xc3".decode("utf-8", "surrogateescape"),
    "turkish": "İıIi",  # noqa: RUF001
    "rtl": "\u202eabc",
}

ODD_ATOMS: dict[str, object] = {
    **{f"text {name}": value for name, value in ODD_TEXTS.items()},
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus one": -1,
    "2**53+1": 2**53 + 1,
    "-2**63-1": -(2**63) - 1,
    "2**64": 2**64,
    "10**40": 10**40,
    "41 digits": 12345678901234567890123456789012345678901,
    "just under the limit": 10**600 - 1,
    "just at the limit": 10**600,
    "minus the limit": -(10**600),
    "5,000 digits": 10**5000 + 7,
    "minus 5,000 digits": -(10**5000),
    "float zero": 0.0,
    "float minus zero": -0.0,
    "float one": 1.0,
    "float tenth": 0.1,
    "1e-130": 1e-130,
    "smallest": 5e-324,
    "largest": 1.7976931348623157e308,
    "inf": math.inf,
    "minus inf": -math.inf,
    "nan": NAN,
    "no bytes": b"",
    "all bytes": bytes(range(256)),
    "decimal 1.0": Decimal("1.0"),
    "decimal 1.00": Decimal("1.00"),
    "decimal 1.10": Decimal("1.10"),
    "decimal -0": Decimal("-0"),
    "decimal 0E+3": Decimal("0E+3"),
    "decimal tiny": Decimal("1E-6143"),
    "decimal long": Decimal("3." + "1" * 100),
    "decimal nan": Decimal("NaN"),
    "decimal -nan payload": Decimal("-NaN123"),
    "decimal inf": Decimal("-Infinity"),
    "uuid": A_UUID,
    "uuid nil": UUID(int=0),
    "datetime naive": A_MOMENT,
    "datetime naive fold": A_MOMENT.replace(fold=1),
    "datetime no micros": A_MOMENT.replace(microsecond=0),
    "datetime min": datetime.min,  # noqa: DTZ901
    "datetime max": datetime.max,  # noqa: DTZ901
    "datetime utc": A_MOMENT.replace(tzinfo=UTC),
    "datetime utc fold": A_MOMENT.replace(tzinfo=UTC, fold=1),
    "datetime offset": A_MOMENT.replace(tzinfo=timezone(timedelta(hours=5, minutes=45))),
    "datetime negative offset": A_MOMENT.replace(tzinfo=timezone(-timedelta(hours=3, minutes=30))),
    "datetime seconds offset": A_MOMENT.replace(tzinfo=timezone(timedelta(seconds=1172))),
    "datetime micro offset": A_MOMENT.replace(tzinfo=timezone(timedelta(microseconds=-1))),
    "datetime named offset": A_MOMENT.replace(tzinfo=timezone(timedelta(hours=1), "CET é")),
    "datetime named utc": A_MOMENT.replace(tzinfo=timezone(timedelta(0), "Zulu")),
    "datetime zone": A_MOMENT.replace(tzinfo=BERLIN),
    "datetime zone fold 0": datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    "datetime zone fold 1": datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    "datetime gap": datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN),
    "datetime zone utc": A_MOMENT.replace(tzinfo=ZoneInfo("UTC")),
    "datetime deep zone": A_MOMENT.replace(tzinfo=ZoneInfo("America/Argentina/Buenos_Aires")),
    "datetime pydantic zone": A_MOMENT.replace(tzinfo=TzInfo(3600)),
    "datetime pydantic utc": A_MOMENT.replace(tzinfo=TzInfo(0)),
    "date": date(2024, 2, 29),
    "date min": date.min,
    "time": time(1, 2, 3, 4),
    "time midnight": time(),
    "time fold": time(2, 30, fold=1),
    "time utc": time(1, tzinfo=UTC),
    "time offset": time(1, tzinfo=timezone(timedelta(hours=-8))),
    "time zone": time(1, tzinfo=BERLIN),
    "timedelta": timedelta(days=1, seconds=2, microseconds=3),
    "timedelta negative": timedelta(microseconds=-1),
    "timedelta min": timedelta.min,
    "timedelta max": timedelta.max,
    "path": Path("/a/b c/é"),
    "path empty": Path(),
    "path surrogate": Path("\udcc3"),
    "path pure posix": PurePosixPath("//a/../b"),
    "path pure windows": PureWindowsPath(r"C:\a\b"),
    "enum": Colour.RED,
    "enum tuple": Colour.PAIR,
    "enum date": Colour.WHEN,
    "enum alias": Colour.ALSO_RED,
    "enum int": Level.HIGH,
    "enum str": Mood.GOOD,
    "enum flags": Access.READ | Access.WRITE,
    "enum no flags": Access(0),
    "enum nested": Outer.Inner.ONE,
    "tuple empty": (),
    "tuple": (1, "a", None),
    "tuple nested": ((1,), ((2,), ())),
    "frozenset empty": frozenset(),
    "frozenset nested": frozenset({frozenset({1, 2}), frozenset(), (1, 2)}),
    "frozen dataclass": Frozen(name="n", tags=("a", "b")),
    "frozen model": Aliased.model_validate({"docId": 7, "hidden": "kept"}),
}

ODD_CONTAINERS: dict[str, object] = {
    "decimal snan": Decimal("sNaN"),  # not hashable
    "list empty": [],
    "list nested": [[], [[]], [[], []]],
    "list mixed": [1, 1.0, True, "1", None, b"1"],
    "dict empty": {},
    "dict order": {"b": 1, "a": 2, "B": 3},
    "dict empty key": {"": 1},
    "dict 1 MB key": {"k" * 2**20: 1},
    "dict int keys": {1: "a", "1": "b", 2: "c"},
    "dict bool and text keys": {True: 1, "true": 2, "True": 3},
    "dict none key": {None: 1, "null": 2, "None": 3},
    "dict tuple key": {(1, 2): 3, (): 4},
    "dict float keys": {1.5: "a", "1.5": "b", math.inf: "c"},
    "dict nan key": {NAN: 1},
    "dict enum keys": {Level.LOW: 1, Colour.RED: 2, "red": 3},
    "dict date keys": {date(2024, 1, 1): 1, "2024-01-01": 2},
    "dict int keys nested": {1: {2: {3: {}}}},
    "dict dollar": {"$": 1},
    "dict dollar tag": {"$": "datetime", "v": "2024-01-01T00:00:00"},
    "dict dollar nested": {"a": {"$": {"$": {"$": []}}}},
    "dict dollar dict": {"$": "dict", "v": ["a", 1]},
    "dict dollar class": {"$": "model", "t": "os:system", "v": {"command": "true"}},
    "dict dollar lookalikes": {"$$": 1, "v": 2, "t": 3, "$a": 4, " $": 5},
    "dict other markers": {"__type__": "datetime", "value": "x", "lc": 1, "py/object": "os.system"},
    "dict surrogate pair key": {"\ud83d\ude00": 1, "😀": 2},
    "dict surrogate key": {"\ud83d": 1},
    "dict composed keys": {"é": 1, "e\u0301": 2},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "ordered empty": OrderedDict(),
    "ordered odd keys": OrderedDict([(2, 1), ("$", 2)]),
    "set empty": set(),
    "set of tuples": {(1, 2), (3, 4)},
    "set of frozensets": {frozenset({1}), frozenset({(1, frozenset())})},
    "set mixed": {1, "1", b"1", None, (1,), Decimal("1.5")},
    "set of nans": {float("nan"), float("nan"), 1.0},
    "set of dataclasses": {Frozen(name="a"), Frozen(name="b")},
    "set of texts": {"é", "e\u0301", "", "$", "\ud83d\ude00"},
    "tuple of lists": ([1], {"a": (2,)}),
    "dataclass": Point(1, -0.0),
    "dataclass computed": Summed([1, 2, 3]),
    "dataclass holder": Holder(value={1: (2,)}, points=[Point(1), Point(2, NAN)]),
    "dataclass pydantic": Checked(n=1, theAlias="y"),  # type: ignore[call-arg]
    "model": Item(sku="a", price=Decimal("1.50"), at=A_MOMENT.replace(tzinfo=BERLIN)),
    "model unset fields": Item(sku="a"),
    "model extra": Open.model_validate({"known": 2, "more": (1, 2), "$": {3}, "é": 1}),
    "model strict": Strict(id=A_UUID, where=Path("/x"), raw=b"\xff"),
    "model root": Numbers([1, 2]),
    "model url": Web(url=HttpUrl("https://example.org/é?q=1"), seen={(1, 2)}),
    "model any": Anything(
        value={1: {(2, 3)}}, child=Anything(value=Point(1)), items=[SubItem(sku="s", extra_field=b"\0")]
    ),
    "model in dict": {"a": [Item(sku="a"), Aliased.model_validate({"docId": 1})]},
}

ODD_VALUES: dict[str, object] = {**ODD_ATOMS, **ODD_CONTAINERS}


def identical(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down; NaN is itself, and the order of a dict counts."""
    if type(one) is not type(other):
        return False
    if isinstance(one, BaseModel):
        return (
            identical(one.__dict__, other.__dict__)
            and identical(one.__pydantic_extra__, other.__pydantic_extra__)
            and one.model_fields_set == other.model_fields_set
        )
    if dataclasses.is_dataclass(one):
        names = [each.name for each in dataclasses.fields(one)]
        return all(identical(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return identical(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(identical(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, set | frozenset):
        left = list(other)
        for item in one:
            match = next((index for index, found in enumerate(left) if identical(item, found)), None)
            if match is None:
                return False
            del left[match]
        return not left
    if isinstance(one, float):
        return one.hex() == other.hex()
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, datetime | time):
        bare = one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.fold == other.fold
        return bare and type(one.tzinfo) is type(other.tzinfo) and repr(one.tzinfo) == repr(other.tzinfo)
    return bool(one == other)


def _odd(name: str) -> object:
    return ODD_VALUES[name]


_zones = (
    st.none()
    | st.just(UTC)
    | st.sampled_from([BERLIN, ZoneInfo("Asia/Kathmandu"), TzInfo(-7200)])
    | st.builds(timezone, st.timedeltas(-timedelta(hours=23, minutes=59), timedelta(hours=23, minutes=59)))
)
_texts = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(sorted(ODD_TEXTS)).map(
    lambda name: ODD_TEXTS[name]
)


def _with_zone(value: Any, zone: Any, fold: int) -> Any:
    return value.replace(tzinfo=zone, fold=fold)


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 2).map(lambda n: 10**600 + n),
    st.floats(),
    _texts,
    st.binary(max_size=8),
    st.decimals().filter(lambda value: not value.is_snan()),
    st.uuids(),
    st.dates(),
    st.timedeltas(),
    st.builds(_with_zone, st.datetimes(), _zones, st.integers(0, 1)),
    st.builds(_with_zone, st.times(), _zones, st.integers(0, 1)),
    # By name, because hypothesis prints what it samples from, and some of these can't be printed.
    st.sampled_from([name for name in ODD_ATOMS if "digits" not in name]).map(_odd),
    st.builds(PurePosixPath, _texts),
)
hashables = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    hashables | st.sampled_from(sorted(ODD_CONTAINERS)).map(_odd),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(_texts, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        st.dictionaries(_texts, inner, max_size=3).map(OrderedDict),
        st.sets(hashables, max_size=4),
        st.builds(Holder, inner, st.lists(st.builds(Point, st.integers(), st.floats()), max_size=2)),
        st.builds(Anything, value=inner),
        st.fixed_dictionaries({"$": inner, "v": inner}),
    ),
    max_leaves=12,
)
"""Everything the codec claims to store without an annotation."""
