"""Settings of agent checkpoints: from Python, `durable.toml`, or an existing `aistack.config.json`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from durable_core.errors import UsageError

if TYPE_CHECKING:
    import os

    from pydantic import ModelWrapValidatorHandler

CONFIG_FILES: Final = ("durable.toml", "aistack.config.json")
BLOCK: Final = "checkpointing"
MAX_RETENTION: Final = 10_000
DEFAULT_RETENTION: Final = 50


class CheckpointingConfig(BaseModel):
    """When checkpoints of agents are written, and how many are kept.

    Attributes:
        enabled: Without it nothing is written.
        granularity: `step`: after each step of an agent; `agent`: only when an agent has completed.
        retention_per_session: How many of a session's newest checkpoints are kept, beside the newest of each
            of its agents; 0 keeps all.

    Raises:
        UsageError: A value is out of range or of another type, or a key is unknown; it is named.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )

    enabled: bool = False
    granularity: Literal["step", "agent"] = "step"
    retention_per_session: Annotated[int, Field(ge=0, le=MAX_RETENTION)] = DEFAULT_RETENTION

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, given: Any, handler: ModelWrapValidatorHandler[CheckpointingConfig]) -> Any:
        """Refuses by the names that the user wrote, with the error of this package."""
        try:
            return handler(given)
        except ValidationError as error:
            told = "; ".join(f"{_key(one['loc'])}{one['msg']}" for one in error.errors())
            raise UsageError(
                f"the checkpointing settings can't be used: {told}",
                remedy="The keys are enabled (true, false), granularity (step, agent) and"
                f" retention_per_session (0 to {MAX_RETENTION}; 0 keeps all)",
            ) from error


def load_config(path: str | os.PathLike[str] | None = None) -> CheckpointingConfig:
    """The settings in a file: table `[checkpointing]` of a `.toml`, block `checkpointing` of a `.json`.

    Args:
        path: The file. None: `durable.toml` in the working folder, else `aistack.config.json` there, else
            the defaults.

    Raises:
        UsageError: There is no such file, it can't be read, or its settings can't be used.
    """
    if path is None:
        found = [Path(name) for name in CONFIG_FILES if Path(name).is_file()]
        return _read(found[0]) if found else CheckpointingConfig()
    return _read(Path(path))


def _read(path: Path) -> CheckpointingConfig:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}", remedy="Name a file that is there, or give no path"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} isn't UTF-8: {error.reason}", remedy="Store it as UTF-8") from error
    try:
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is no {kind}: {error}", remedy=f"Mend it: {kind} by its suffix") from error
    block = settings.get(BLOCK, {}) if isinstance(settings, dict) else settings
    if not isinstance(block, dict):
        raise UsageError(
            f"{BLOCK} in {path} is no table of settings", remedy='Write {"checkpointing": {"enabled": true}}'
        )
    try:
        return CheckpointingConfig.model_validate(block)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", remedy=error.remedy) from error


def _key(path: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, path))}: " if path else ""
