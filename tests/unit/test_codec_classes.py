"""Models, dataclasses and enums come back as what they were, by name or annotation, or not at all."""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pydantic
import pytest
from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    Strict,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from durable_core.codec import adapter_for, decode, encode, freeze, input_adapters, return_adapter
from durable_core.errors import CorruptRecord, NotSerializable, UnknownType, UnresolvedAnnotation
from tests.odd_values import (
    A_MOMENT,
    A_UUID,
    Aliased,
    Colour,
    Frozen,
    Item,
    Numbers,
    Open,
    Page,
    Point,
    SubItem,
    Summed,
    Web,
    identical,
)

if TYPE_CHECKING:
    from collections.abc import Mapping as OnlyForTypes


class Coordinates(NamedTuple):
    x: int
    y: Fraction


class Movie(TypedDict):
    title: str
    year: int


class Text(str):
    __slots__ = ()


@dataclass
class Doubling:
    n: int

    def __post_init__(self) -> None:
        self.n *= 2


class Shouting(BaseModel):
    text: Annotated[str, AfterValidator(lambda text: text + "!")]


class Rounded(BaseModel):
    n: float


@dataclass
class NeedsMore:
    n: int
    more: InitVar[int]


class Refusing(BaseModel):
    n: int = 1

    @model_validator(mode="after")
    def never(self) -> Refusing:
        if self.n > 1:
            raise RuntimeError("not again")
        return self


class Networked(BaseModel):
    address: IPv4Address
    share: Fraction
    points: dict[str, Coordinates]
    login: SecretStr | None = None
    page: Page[Item] | None = None


@dataclass
class Site:
    url: HttpUrl
    addresses: list[IPv4Address] = field(default_factory=list)


class Strictly(BaseModel):
    model_config = ConfigDict(strict=True)
    url: HttpUrl
    share: Fraction


class Elsewhere(BaseModel):
    n: int = 1

    @model_validator(mode="wrap")
    @classmethod
    def other(cls, value: object, handler: Callable[[object], Any]) -> Any:
        return Rounded(n=2)


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="allow"))
class Roomy:
    n: int


class Plain: ...


def local_classes() -> tuple[Any, Any, Any]:
    class Model(BaseModel):
        n: int
        inner: Item | None = None

    @dataclass
    class Data:
        n: int

    class Kind(Enum):
        ONE = 1

    return Model, Data, Kind


ANNOTATED: dict[str, tuple[object, object]] = {
    "fraction": (Fraction, Fraction(1, 3)),
    "address": (IPv4Address, IPv4Address("10.0.0.1")),
    "url": (AnyUrl, AnyUrl("https://example.org/x")),
    "namedtuple": (Coordinates, Coordinates(1, Fraction(1, 2))),
    "deque": (collections.deque[int], collections.deque([1, 2])),
    "defaultdict": (
        collections.defaultdict[str, list[int]],
        collections.defaultdict(list, {"a": [1]}),
    ),
    "list of fractions": (list[Fraction], [Fraction(1, 2), Fraction(3)]),
    "mixed": (dict[str, Fraction | datetime], {"a": Fraction(1, 2), "b": A_MOMENT}),
    "generic model": (Page[Item], Page[Item](items=[Item(sku="a", at=A_MOMENT)], totalCount=3)),
    "list of generics": (
        list[Page[int]],
        [Page[int](items=[1], totalCount=1), Page[int](items=[], totalCount=0)],
    ),
    "generic with tuples": (Page[Any], Page[Any](items=[(1, {2: 3})], totalCount=1)),
    "model": (Item, Item(sku="a", price=Decimal("1.50"))),
    "subclass of a model": (Item, SubItem(sku="a", extra_field=b"\xff")),
    "list of subclasses": (list[Item], [SubItem(sku="a"), Item(sku="b")]),
    "aliases": (Aliased, Aliased.model_validate({"docId": 1, "hidden": "kept"})),
    "root": (Numbers, Numbers([1])),
    "extra": (Open, Open.model_validate({"x": (1,)})),
    "dataclass": (Point, Point(1)),
    "computed": (Summed, Summed([1, 2])),
    "enum": (Colour, Colour.PAIR),
    "union": (Item | Point | None, Point(2)),
    "literal": (Literal["a", 1], 1),
    "typed dict": (Movie, {"title": "a", "year": 1}),
    "tuple": (tuple[int, ...], (1, 2)),
    "int keys": (dict[int, str], {1: "a"}),
    "set of tuples": (set[tuple[int, int]], {(1, 2), (3, 4)}),
    "strict": (Annotated[UUID, Strict()], A_UUID),
    "any inside": (dict[str, Any], {"a": (1, {2})}),
    "text with surrogates": (Any, "\ud83d\ude00"),
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_an_annotated_value_comes_back_equal_and_of_the_same_types(name: str) -> None:
    annotation, value = ANNOTATED[name]
    adapter = adapter_for(annotation)
    raw, restored = freeze(value, adapter)
    assert identical(restored, value)
    assert identical(decode(raw, adapter), value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[int], (1, 2)),
        (float, 1),
        (Item, {"sku": "a"}),
        (Aliased, {"docId": 7}),
        (list[Aliased], [{"docId": 7}, Aliased.model_validate({"docId": 8})]),
        (Point, {"x": 1}),
        (datetime, "2024-02-29T12:30:15"),
        (Colour, "red"),
    ],
)
def test_an_annotation_decides_what_plain_data_comes_back_as(annotation: object, value: object) -> None:
    adapter = adapter_for(annotation)
    assert adapter is not None
    raw, restored = freeze(value, adapter)
    assert identical(restored, adapter.validate_python(value))
    assert identical(decode(raw, adapter), restored)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "one"),
        (Item, {"price": 1}),
        (Item, Point(1)),
        (list[int], [1, None]),
        (Annotated[int, Strict()], "1"),
        (Annotated[int, Field(gt=3)], 3),
        (Movie, {"title": "a"}),
        (Item, [1]),
    ],
)
def test_an_output_that_fails_its_annotation_is_refused_before_it_is_stored(
    annotation: object, value: object
) -> None:
    with pytest.raises(NotSerializable, match="does not fit its annotation"):
        freeze(value, adapter_for(annotation))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (SecretStr, SecretStr("hunter2")),
        (list[SecretStr], [SecretStr("hunter2")]),
        (str, Text("a")),
        (Any, Fraction(1, 2)),
        (object, Fraction(1, 2)),
        (list[Any], [Fraction(1, 2)]),
        (collections.deque[int], collections.deque([1], maxlen=3)),
        (list[Any], [Coordinates(1, Fraction(1))]),
    ],
)
def test_what_an_annotation_would_bring_back_as_something_else_is_refused(
    annotation: object, value: object
) -> None:
    with pytest.raises(NotSerializable) as caught:
        freeze(value, adapter_for(annotation))
    assert "hunter2" not in str(caught.value)


def test_fields_are_stored_by_their_own_annotations_where_the_codec_has_no_tag() -> None:
    value = Networked(
        address=IPv4Address("10.0.0.1"),
        share=Fraction(1, 3),
        points={"a": Coordinates(1, Fraction(1, 2))},
        login=None,
        page=Page[Item](items=[Item(sku="a", price=Decimal(1), at=None)], totalCount=1),
    )
    assert identical(freeze([value])[1], [value])
    strictly = Strictly(url=HttpUrl("https://example.org/"), share=Fraction(1, 3))
    assert identical(freeze(strictly)[1], strictly)
    site = Site(url=HttpUrl("https://example.org/"), addresses=[IPv4Address("10.0.0.1")])
    assert identical(freeze(site)[1], site)
    web = Web(url=HttpUrl("https://x.org"))
    assert identical(freeze(web)[1], web)
    value.login = SecretStr("hunter2")
    with pytest.raises(NotSerializable) as caught:
        freeze([value])
    assert caught.value.path == "[0].login"


def test_excluded_and_aliased_fields_are_stored_like_all_others() -> None:
    value = Aliased.model_validate({"docId": 7, "hidden": "kept"})
    restored = freeze(value)[1]
    assert (restored.doc_id, restored.hidden, restored.doubled) == (7, "kept", 14)


def test_a_model_knows_which_fields_were_set() -> None:
    restored = freeze(Item(sku="a"))[1]
    assert restored.model_dump(exclude_unset=True) == {"sku": "a"}


def test_a_dataclass_keeps_fields_that_its_init_does_not_take() -> None:
    value = Summed([1, 2])
    object.__setattr__(value, "total", 99)
    assert freeze(value)[1].total == 99


@pytest.mark.parametrize("value", [Doubling(1), Shouting(text="a"), [Doubling(1)]], ids=repr)
def test_a_value_that_changes_each_time_it_is_read_is_refused(value: object) -> None:
    with pytest.raises(NotSerializable, match="each time"):
        freeze(value)
    with pytest.raises(NotSerializable, match="each time"):
        freeze(value, adapter_for(list[Doubling] if isinstance(value, list) else type(value)))


def test_a_value_that_a_validator_only_settles_comes_back_settled() -> None:
    value = Rounded(n=1.5)
    value.n = 2
    raw, restored = freeze(value)
    assert type(restored.n) is float
    assert identical(decode(raw), restored)


def test_an_instance_that_its_class_does_not_take_back_is_refused() -> None:
    refusing = Refusing()
    refusing.n = 2
    told_of: dict[str, object] = {
        "not again": refusing,
        "valid number": Rounded.model_construct(n="many"),  # type: ignore[arg-type]
        "more": NeedsMore(1, 2),
        "gave a Rounded": Elsewhere.model_construct(n=1),
        "type .*Roomy": Roomy(1, extra=2),  # type: ignore[call-arg]
    }
    for told, value in told_of.items():
        with pytest.raises(NotSerializable, match=told):
            freeze(value)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_instance_of_a_local_class_needs_an_annotation(which: int) -> None:
    cls = local_classes()[which]
    value = cls(1) if which else cls(n=1, inner=SubItem(sku="a"))
    with pytest.raises(NotSerializable, match="annotate") as caught:
        encode({"a": [value]})
    assert caught.value.path == ".a[0]"
    restored = freeze([value], adapter_for(list[cls]))[1]  # type: ignore[valid-type]
    assert identical(restored, [value])


def test_a_generic_model_needs_an_annotation() -> None:
    with pytest.raises(NotSerializable, match="annotate"):
        encode(Page[bytes](items=[]))  # one that no module has by name: pydantic gives them to modules


def test_a_class_that_was_defined_anew_is_not_taken_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Point(1)
    monkeypatch.setattr(sys.modules[Point.__module__], "Point", Frozen)
    with pytest.raises(NotSerializable, match="found again"):
        encode(value)


def test_a_class_that_is_gone_is_named_unless_an_annotation_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = encode([Item(sku="a"), Point(1), Colour.RED])
    for name in ("Item", "Point", "Colour"):
        monkeypatch.delattr(sys.modules[Item.__module__], name)

    class NewItem(BaseModel):
        sku: str
        price: Decimal

    with pytest.raises(UnknownType, match=r"tests\.odd_values:Item") as caught:
        decode(raw)
    assert "annotate" in str(caught.value)
    restored = decode(raw, adapter_for(tuple[NewItem, dict[str, float], str]))
    assert restored == (NewItem(sku="a", price=Decimal("0.00")), {"x": 1, "y": 0.5}, "red")


def test_an_alias_keeps_a_renamed_class_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode(Point(1)).replace(b":Point", b":OldPoint")
    monkeypatch.setattr(sys.modules[Point.__module__], "OldPoint", Point, raising=False)
    assert decode(raw) == Point(1)


def test_a_class_that_grew_a_field_is_corrupt_by_name_with_what_is_missing() -> None:
    raw = encode(Item(sku="a")).replace(b'"sku":"a",', b"")
    with pytest.raises(CorruptRecord, match="sku: Field required"):
        decode(raw)


def test_nothing_is_imported_to_find_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            pytest.fail(f"{name} was asked for")

    loud = types.ModuleType("loud_module")
    loud.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "loud_module", loud)
    sys.modules.pop("this", None)
    for name in ("this:s", "lazy_module:Thing", "loud_module:Thing", "", ":", "os:", ":x", "os.path:join:x"):
        for kind in ("model", "dataclass", "enum"):
            with pytest.raises(UnknownType):
                decode(f'{{"$":"{kind}","t":"{name}","v":{{}}}}'.encode())
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("model", "os:system"),
        ("model", "subprocess:Popen"),
        ("model", "builtins:dict"),
        ("model", "tests.odd_values:Point"),
        ("model", "tests.odd_values:Colour"),
        ("dataclass", "tests.odd_values:Item"),
        ("dataclass", "tests.odd_values:Item.model_validate"),
        ("enum", "tests.odd_values:Point"),
        ("enum", "tests.odd_values:math.inf"),
        ("dataclass", "tests.odd_values:dataclasses.Field"),
    ],
)
def test_only_a_class_of_the_kind_that_the_tag_says_is_ever_called(kind: str, name: str) -> None:
    with pytest.raises(UnknownType, match="no such class"):
        decode(f'{{"$":"{kind}","t":"{name}","v":{{"command":"true"}}}}'.encode())


# ---- annotations ----


async def awaited(path: str) -> list[Item]:
    raise NotImplementedError


def strung() -> "Page[Item]":  # noqa: UP037
    raise NotImplementedError


def returns_awaitable() -> Awaitable[Item]:
    raise NotImplementedError


def says_nothing():  # type: ignore[no-untyped-def]
    raise NotImplementedError


def says_none() -> None:
    raise NotImplementedError


def says_any() -> Any:
    raise NotImplementedError


def iterates() -> Iterator[int]:
    raise NotImplementedError


async def streams() -> AsyncIterator[int]:
    raise NotImplementedError
    yield 1


def only_for_types() -> OnlyForTypes[str, int]:
    raise NotImplementedError


def bad_parameter(a: OnlyForTypes[str, int]) -> int:  # type: ignore[type-arg]
    raise NotImplementedError


def no_schema() -> Plain:
    raise NotImplementedError


class Worker:
    def method(self) -> Item:
        raise NotImplementedError

    @classmethod
    def made(cls) -> Item:
        raise NotImplementedError

    @staticmethod
    def still() -> Item:
        raise NotImplementedError

    def __call__(self) -> Point:
        raise NotImplementedError


class Unhashable(Worker):
    __hash__ = None  # type: ignore[assignment]


@functools.wraps(awaited)
def wrapped(*args: Any) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (awaited, [Item(sku="a")]),
        (strung, Page[Item](items=[Item(sku="a")])),
        (returns_awaitable, Item(sku="a")),
        (Worker().method, Item(sku="a")),
        (Worker.made, Item(sku="a")),
        (Worker.still, Item(sku="a")),
        (Worker(), Point(1)),
        (Unhashable(), Point(1)),
        (functools.partial(awaited, "x"), [Item(sku="a")]),
        (functools.partial(functools.partial(Worker.method), Worker()), Item(sku="a")),
        (wrapped, [Item(sku="a")]),
        (Item, Item(sku="a")),
        (bad_parameter, 1),
    ],
)
def test_the_return_annotation_is_found_behind_whatever_is_called(
    fn: Callable[..., object], value: object
) -> None:
    for _ in range(2):
        adapter = return_adapter(fn)
        assert adapter is not None
        assert adapter.validate_python(value) == value
        with pytest.raises(ValueError, match="validation error"):
            adapter.validate_python("something else")


@pytest.mark.parametrize("fn", [says_nothing, says_none, says_any, iterates, streams, len, print])
def test_an_annotation_that_says_nothing_gives_no_adapter(fn: Callable[..., object]) -> None:
    assert return_adapter(fn) is None


def test_an_adapter_is_built_once_for_a_function() -> None:
    assert return_adapter(awaited) is return_adapter(awaited)
    assert return_adapter(Worker().method) is return_adapter(Worker().method)
    assert adapter_for(Item) is adapter_for(Item)
    annotation = list[Item]
    assert adapter_for(annotation) is adapter_for(annotation)


def test_a_string_annotation_is_read_where_the_wrapped_function_is() -> None:
    @functools.wraps(awaited)
    def decorated(*args: Any) -> Any:
        raise NotImplementedError

    elsewhere = types.FunctionType(decorated.__code__, {"Item": int})  # a decorator from another module
    functools.update_wrapper(elsewhere, awaited)
    adapter = return_adapter(elsewhere)
    assert adapter is not None
    assert adapter.validate_python([{"sku": "a"}]) == [Item(sku="a")]


def test_adapters_do_not_keep_functions_alive() -> None:
    import gc
    import weakref

    def local() -> int:
        raise NotImplementedError

    seen = weakref.ref(local)
    assert return_adapter(local) is not None
    del local
    gc.collect()
    assert seen() is None


def test_unions_that_differ_in_order_are_not_taken_for_each_other() -> None:
    class One(BaseModel):
        n: int

    class Two(BaseModel):
        n: int

    one_first, two_first = adapter_for(list[One | Two]), adapter_for(list[Two | One])
    assert one_first is not None
    assert two_first is not None
    assert one_first.validate_python([{"n": 1}]) == [One(n=1)]
    assert two_first.validate_python([{"n": 1}]) == [Two(n=1)]


def test_a_string_annotation_may_name_what_the_function_closes_over() -> None:
    local = local_classes()[1]

    def closing(n: int) -> local:  # type: ignore[valid-type]
        return local(n)

    assert freeze(closing(1), return_adapter(closing))[1] == local(1)


@pytest.mark.parametrize(("fn", "name"), [(only_for_types, "OnlyForTypes"), (no_schema, "Plain")])
def test_an_unresolved_annotation_names_function_annotation_and_remedy(
    fn: Callable[..., object], name: str
) -> None:
    for _ in range(2):
        with pytest.raises(UnresolvedAnnotation) as caught:
            return_adapter(fn)
        assert fn.__qualname__ in str(caught.value)
        assert name in str(caught.value)
        assert "TYPE_CHECKING" in str(caught.value)


def test_a_local_class_in_a_string_annotation_is_unresolved() -> None:
    class Local(BaseModel): ...

    def local() -> Local:
        raise NotImplementedError

    local.__annotations__["return"] = "Local"
    with pytest.raises(UnresolvedAnnotation, match="Local"):
        return_adapter(local)


def test_inputs_are_adapted_by_the_annotations_after_the_context() -> None:
    def workflow(
        ctx: OnlyForTypes[str, int], task: str, when: datetime, where: Path = Path(), *, n=1, **more: int
    ):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    found = input_adapters(workflow)
    assert sorted(found) == ["task", "when", "where"]
    assert found["when"].validate_python("2024-01-01") == datetime(2024, 1, 1)  # noqa: DTZ001


def test_an_input_that_cannot_be_resolved_is_named() -> None:
    def workflow(ctx: object, a: OnlyForTypes[str, int]) -> int:
        raise NotImplementedError

    with pytest.raises(UnresolvedAnnotation, match="'a'"):
        input_adapters(workflow)
