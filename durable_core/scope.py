"""Scopes: who may call what where, so that ids come out the same on every replay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from durable_core.control_flow import BranchHalted
from durable_core.errors import AmbiguousStep, InvalidId, UsageError
from durable_core.identity import MAX_STEP_ID_CHARS

if TYPE_CHECKING:
    from durable_core.records import StepRecord


class Halt:
    """Shared by the branches of one `parallel`: set when one of them fails.

    Args:
        outer: Of the branches around them.
        replays: One of them failed in an earlier life, which the workflow knows: they replay, and begin
            nothing.
    """

    __slots__ = ("_set", "outer", "replays")

    def __init__(self, outer: Halt | None, *, replays: bool = False) -> None:
        self.outer = outer
        self.replays = replays
        self._set = False

    def set(self) -> None:
        """From now on the branches begin nothing more."""
        self._set = True

    def is_set(self) -> bool:
        """Whether these branches, or ones around them, are halted."""
        return self._set or (self.outer is not None and self.outer.is_set())

    def only_replays(self) -> bool:
        """Whether these branches, or ones around them, may begin nothing new."""
        return self._set or self.replays or (self.outer is not None and self.outer.only_replays())


class Scope:
    """A namespace of step ids inside a run.

    Args:
        path: What its step ids begin with: empty for the root, else `branch/`.
        halt: Of the `parallel` that it is a branch of.
        in_item: Whether it belongs to an item of a map: its steps aren't among those that the run counts.
    """

    __slots__ = ("_callers", "_counts", "_drawer", "_drawn", "_ordinal", "halt", "in_item", "last_at", "path")

    def __init__(self, path: str = "", halt: Halt | None = None, *, in_item: bool = False) -> None:
        self.path = path
        self.halt = halt
        self.in_item = in_item
        self.last_at: str | None = None  # the latest committed_at of the steps that have returned
        self._drawn = 0
        self._drawer: object = None
        self._ordinal = 0
        self._counts: dict[str, int] = {}
        self._callers: dict[str, object] = {}

    def allot(self, name: str, caller: object) -> tuple[str, int]:
        """The id and index of the call that is being made.

        Args:
            name: Of the step, or of a branch with its `/`.
            caller: The task or thread that makes it.

        Raises:
            AmbiguousStep: Another caller used this name first, so that order would decide which call is
                which.
            InvalidId: The id would be too long for some of the stores.
        """
        count = self._counts.get(name, 0) + 1
        if count == 1:
            self._callers[name] = caller
        elif self._callers[name] is not caller:
            raise AmbiguousStep(
                f"{self.path + name!r} is called from two tasks or threads: order would decide identity",
                remedy="Make the calls in one task (awaiting may overlap), give them names of their own,"
                " or use ctx.branch for concurrent parts and ctx.map for many items",
            )
        step_id = f"{self.path}{name}" if count == 1 else f"{self.path}{name}#{count}"
        if len(step_id) > MAX_STEP_ID_CHARS:
            raise InvalidId(
                f"the step id {step_id[:80]!r}… has {len(step_id)} characters, more than {MAX_STEP_ID_CHARS}",
                remedy="Shorten the names of steps and branches (name=), or nest fewer",
            )
        self._counts[name] = count
        index = self._ordinal
        self._ordinal = index + 1
        return step_id, index

    def allot_branch(self, name: str, caller: object) -> Scope:
        """The scope of a branch that is being called."""
        path, _ = self.allot(name, caller)
        return Scope(f"{path}/", self.halt, in_item=self.in_item)

    def returned(self, record: StepRecord) -> None:
        """A step has returned; of steps side by side the latest counts, in whatever order they return."""
        at = record.committed_at
        if at is not None and (self.last_at is None or at > self.last_at):
            self.last_at = at

    def draw(self, caller: object) -> int:
        """The number of a draw of chance that is being made.

        Raises:
            AmbiguousStep: Another caller draws in this scope, so that order would decide which draw is which.
        """
        if self._drawn == 0:
            self._drawer = caller
        elif self._drawer is not caller:
            raise AmbiguousStep(
                f"two tasks or threads draw random numbers or ids in scope {self.path!r}:"
                " order would decide which is which",
                remedy="Draw in one task, or give each part a branch of its own",
            )
        self._drawn += 1
        return self._drawn

    def is_replayed(self) -> bool:
        """Whether its own `parallel` is known to have failed in an earlier life."""
        return self.halt is not None and self.halt.replays

    def check(self) -> None:
        """Raises where a sibling branch has failed."""
        if self.halt is not None and self.halt.is_set():
            raise BranchHalted(f"a sibling of {self.path!r} has failed")

    def check_new(self) -> None:
        """Raises where nothing new may be begun: a sibling has failed, now or in an earlier life."""
        if self.halt is not None and self.halt.only_replays():
            raise BranchHalted(f"a sibling of {self.path!r} has failed")


def calling_task() -> object:
    """The task that calls a verb.

    Raises:
        UsageError: It is called in a thread without an event loop.
    """
    try:
        return asyncio.current_task()
    except RuntimeError as error:
        raise UsageError(
            "a verb of an async workflow was called in another thread",
            remedy="Call it in the workflow's own tasks, or write the workflow as `def` with a SyncContext",
        ) from error
