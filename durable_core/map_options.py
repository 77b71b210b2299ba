"""How a map is to run its items."""

from __future__ import annotations

import functools
import inspect
from collections.abc import ItemsView, KeysView, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import TypedDict

from durable_core.arguments import check_count, check_number
from durable_core.errors import UsageError
from durable_core.manifest import Jsonl
from durable_core.rate import Rate
from durable_core.retry import Retry
from durable_core.workflow import step_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable_core.step_definition import Step

DEFAULT_CONCURRENCY: Final = 32
SEGMENT_ITEMS: Final = 256
CHUNK_ITEMS: Final = 100
MAX_KEY_CHARS: Final = 1024
CONTEXTS: Final = ("Context", "SyncContext")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """The arguments of `ctx.map`, checked.

    Attributes:
        key: Gives each item the name that it is known by; by its position when None.
        max_concurrency: Items in work at a time.
        rate: How fast items are started.
        tolerate_failures: A count of items that may fail, or, as a float, a share of all of them.
        linger_ms: How long finished items wait for others to be written with.
        retry: Instead of the step's own.
        distribute: Whether several workers share the items.
        chunk_size: Items that one worker claims at a time; fixed when the map begins.
        collect: Whether the result has `outputs`.
    """

    key: Callable[[Any], object] | None = None
    max_concurrency: int = DEFAULT_CONCURRENCY
    rate: Rate | None = None
    tolerate_failures: int | float = 0
    linger_ms: int = 0
    retry: Retry | None = None
    distribute: bool = False
    chunk_size: int | None = None
    collect: bool = True

    def __post_init__(self) -> None:
        """Refuses what can't be meant."""
        if self.key is not None and not callable(self.key):
            raise UsageError("key= must be a function of an item", remedy="Write key=lambda item: item.id")
        check_count("max_concurrency", self.max_concurrency)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise UsageError(f"rate={self.rate!r} must be a Rate", remedy="Write rate=Rate(500, per_s=60)")
        if isinstance(self.tolerate_failures, float):
            check_number("tolerate_failures", self.tolerate_failures, least=0, most=1)
        else:
            check_count("tolerate_failures", self.tolerate_failures, least=0)
        check_count("linger_ms", self.linger_ms, least=0)
        if self.retry is not None and type(self.retry) is not Retry:
            raise UsageError(f"retry={self.retry!r} must be a Retry")
        if self.chunk_size is not None:
            check_count("chunk_size", self.chunk_size)
        for name in ("distribute", "collect"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.chunk_size is not None and not self.distribute:
            raise UsageError(
                "chunk_size= is for maps that workers share", remedy="Add distribute=True, or leave it out"
            )

    def tolerated(self, total: int | None) -> int | None:
        """How many items may fail; None where that isn't known yet.

        Args:
            total: Of the items, where it is known.
        """
        if not isinstance(self.tolerate_failures, float):
            return self.tolerate_failures
        return None if total is None else int(self.tolerate_failures * total + 1e-9)

    @property
    def segment_items(self) -> int:
        """The most finished items that aren't durable yet."""
        return max(self.max_concurrency, SEGMENT_ITEMS)


class MapArguments(TypedDict, total=False):
    """The options of `ctx.map`: see `MapOptions`."""

    key: Callable[[Any], object] | None
    max_concurrency: int
    rate: Rate | None
    tolerate_failures: int | float
    linger_ms: int
    retry: Retry | None
    distribute: bool
    chunk_size: int | None
    collect: bool


def checked(options: MapArguments) -> MapOptions:
    """Options as `ctx.map` takes them.

    Raises:
        UsageError: One is unknown or out of range.
    """
    unknown = options.keys() - MapOptions.__dataclass_fields__.keys()
    if unknown:
        raise UsageError(
            f"unknown map option {min(unknown)!r}",
            remedy=f"Use: {', '.join(MapOptions.__dataclass_fields__)}",
        )
    return MapOptions(**options)


class Mapped(NamedTuple):
    """What a map calls with each item: the item comes after the positional arguments that were bound."""

    step: Step[..., Any]
    args: tuple[object, ...]
    kwargs: dict[str, object]


def mapped(fn: Callable[..., Any], options: MapOptions) -> Mapped:
    """Takes a function or partial apart.

    Raises:
        UsageError: It has no name that a step could have, or options that a map can't keep.
    """
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = {}
    while isinstance(fn, functools.partial):
        args, kwargs, fn = fn.args + args, {**fn.keywords, **kwargs}, fn.func
    step = step_of(fn)
    if options.retry is not None:
        step = step.with_options(retry=options.retry)
    if step.options.is_guarded:
        raise UsageError(
            f"step {step.name!r} is at_most_once, which a map can't keep: it writes outcomes in groups",
            remedy="Map a function `async def each(ctx: Context, item)`, and call the step in it",
        )
    if context_kind(step.fn) is not None and (step.options.retry.max_attempts > 1 or step.options.timeout_s):
        raise UsageError(
            f"{step.name!r} has steps of its own: they are tried again and timed out, not it as a whole",
            remedy="Give retry= and timeout_s= to the steps in it",
        )
    if context_kind(step.fn) is not None and (context_kind(step.fn) == CONTEXTS[0]) != step.is_async:
        raise UsageError(
            f"{step.name!r} is {'async' if step.is_async else 'plain'}, and takes a {context_kind(step.fn)}",
            remedy="Write `async def fn(ctx: Context, item)` or `def fn(ctx: SyncContext, item)`",
        )
    return Mapped(step, args, kwargs)


def check_items(items: object) -> None:
    """Refuses what can't be the items of a map.

    Raises:
        UsageError: It can't be iterated, or is one value, or has no order of its own.
    """
    kind = type(items).__name__
    if isinstance(items, str | bytes | bytearray | Mapping):
        raise UsageError(f"the items of a map are a {kind}", remedy="Give a list of items")
    if isinstance(items, Set) and not isinstance(items, KeysView | ItemsView):
        raise UsageError(
            f"the items of a map are a {kind}, whose order is another one in each process",
            remedy="Give a list: sorted(items)",
        )
    if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
        raise UsageError(
            f"the items of a map are a {kind}, which can't be iterated",
            remedy="Give a list, an iterator or Jsonl(path)",
        )


def check_shareable(items: object) -> None:
    """Refuses items of which another process can't have a part without having all before it.

    Raises:
        UsageError: They are neither in a sequence nor in a manifest.
    """
    in_sequence = hasattr(items, "__len__") and hasattr(items, "__getitem__")
    if not in_sequence and not isinstance(items, Jsonl):
        raise UsageError(
            f"the items of a map with distribute=True are a {type(items).__name__}, which can be read from"
            " its beginning only",
            remedy="Give a list, or Jsonl(path) for many",
        )


def context_kind(fn: Callable[..., Any]) -> str | None:
    """Which context a function's first parameter is annotated as, by name; None if it isn't."""
    try:
        first = next(iter(inspect.signature(fn).parameters.values()), None)
    except (TypeError, ValueError):  # a built-in function may have none that can be read
        return None
    annotation = first.annotation if first is not None else None
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    name = name.rpartition(".")[2].strip("'\"")
    return name if name in CONTEXTS else None
