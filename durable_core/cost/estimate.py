"""What a run over more items would cost, from one that was over few."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from durable_core.cost.bill import Bill
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from durable_core.cost.of_run import RunCost


class Estimate(NamedTuple):
    """A run scaled to so many items.

    Attributes:
        items_then: How many items the run had that this is scaled from.
        fixed: The part that doesn't depend on them.
        per_item: Of each.
        total: Of the run with the items asked for.
    """

    items_then: int
    fixed: Bill
    per_item: Bill
    total: Bill


def estimate(cost: RunCost, items: int) -> Estimate:
    """Scales the largest map, or else the step that was called most often, and what is about as large.

    Args:
        cost: Of a run that completed.
        items: How many there are to be.

    Raises:
        UsageError: The run had no map, nor a step that was called more than once.
    """
    parts = cost.maps if any(count > 0 for count, _ in cost.maps.values()) else cost.steps
    then = max((count for count, _ in parts.values()), default=0)
    if then < 1 or (parts is cost.steps and then < 2):
        raise UsageError(
            "nothing in that run grows with the number of items: it has no map, and no step was called twice",
            remedy="Estimate from a run over at least two items",
        )
    scaled = sum((bill for count, bill in parts.values() if 2 * count >= then), Bill())
    fixed, per_item = cost.total - scaled, scaled / then
    return Estimate(then, fixed, per_item, fixed + per_item * items)
