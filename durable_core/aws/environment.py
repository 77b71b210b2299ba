"""What a function is told by its environment variables, read once when it starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "DURABLE_"


class Environment(BaseModel):
    """The settings of one function: each is the variable of its name, in capitals after `DURABLE_`.

    Attributes:
        store: The store's URL.
        drive_queue_url, work_queue_url: Of the queues that `drive_run` and `work_chunk` are triggered by.
        event_bus: Name of the bus that is told of each end and suspension.
        retention_days: Runs that are over are pruned so many days after their end; 0 keeps them.
        stage: What metrics are told apart by.
        log_level: As `DURABLE_LOG_LEVEL`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", str_strip_whitespace=True)

    store: Annotated[str, Field(min_length=1)]
    drive_queue_url: Annotated[str, Field(min_length=1)] | None = None
    work_queue_url: Annotated[str, Field(min_length=1)] | None = None
    event_bus: Annotated[str, Field(min_length=1)] | None = None
    retention_days: Annotated[int, Field(ge=0, le=36_500)] | None = None
    stage: Annotated[str, Field(min_length=1)] = "dev"
    log_level: str = "info"


def read_environment(*needed: str, given: Mapping[str, str] | None = None) -> Environment:
    """The settings of this function.

    Args:
        needed: Fields that it can't do without, beside `store`.
        given: The variables; those of the process when None.

    Raises:
        UsageError: One is missing or can't be used; each is named.
    """
    found = {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in (os.environ if given is None else given).items()
        if name.startswith(_PREFIX) and value.strip()
    }
    wrong = [f"{_variable(name)} is missing" for name in ("store", *needed) if name not in found]
    try:
        environment = Environment.model_validate(found | {"store": found.get("store", "-")})
    except ValidationError as error:
        wrong += [f"{_variable(str(one['loc'][0]))}: {one['msg']}" for one in error.errors()]
        environment = None
    if wrong or environment is None:
        raise UsageError(
            f"the function's environment can't be used: {'; '.join(wrong)}",
            remedy="Set these variables in the template, under Environment",
        )
    return environment


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"
