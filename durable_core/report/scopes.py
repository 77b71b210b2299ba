"""Steps as a tree of their scopes, in the order in which these were begun."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Document = dict[str, Any]


@dataclass(slots=True)
class Scope:
    """A scope with what is in it.

    Attributes:
        path: As its steps' ids begin, without the last `/`; empty for the root.
        children: Steps and scopes.
    """

    path: str
    children: list[Scope | Document] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Scope | Document]]:
        """Everything below it with its depth, each scope before what is in it."""
        for child in self.children:
            yield depth, child
            if isinstance(child, Scope):
                yield from child.walk(depth + 1)


def tree_of(steps: Sequence[Document]) -> Scope:
    """The root, with all steps below it.

    Args:
        steps: In the order in which they were begun.
    """
    root = Scope("")
    scopes = {"": root}
    for step in steps:
        path, _, _ = str(step["step_id"]).rpartition("/")
        _scope_at(scopes, path).children.append(step)
    return root


def _scope_at(scopes: dict[str, Scope], path: str) -> Scope:
    """The scope of a path, which is put into the one above it when it is first met."""
    missing = []
    while path not in scopes:
        missing.append(path)
        path, _, _ = path.rpartition("/")
    found = scopes[path]
    for below in reversed(missing):
        scope = Scope(below)
        found.children.append(scope)
        scopes[below] = found = scope
    return found
