"""Settings of checkpoints: from Python and from files, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from durable_core import CheckpointingConfig, UsageError, load_config

ON = CheckpointingConfig(enabled=True, granularity="agent", retention_per_session=7)


def test_nothing_is_written_unless_it_was_asked_for() -> None:
    config = CheckpointingConfig()
    assert (config.enabled, config.granularity, config.retention_per_session) == (False, "step", 50)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"retention_per_session": -1}, "retention"),
        ({"retention_per_session": 10_001}, "retention"),
        ({"retention_per_session": 1.5}, "retention"),
        ({"retention_per_session": "50"}, "retention"),
        ({"retention_per_session": True}, "retention"),
        ({"granularity": "loop"}, "granularity"),
        ({"enabled": "yes"}, "enabled"),
        ({"enabled": 1}, "enabled"),
        ({"retention": 5}, "retention"),
        ({"Enabled": True}, "Enabled"),
    ],
)
def test_a_value_or_key_that_can_not_be_meant_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        CheckpointingConfig(**given)
    assert isinstance(caught.value, UsageError)
    assert caught.value.remedy


@pytest.mark.parametrize("retention", [0, 1, 10_000])
def test_the_ends_of_the_range_are_in_it(retention: int) -> None:
    assert CheckpointingConfig(retention_per_session=retention).retention_per_session == retention


AGENT = '"granularity": "agent"'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "durable.toml",
            "[other]\nx = 1\n[checkpointing]\nenabled = true\n"
            "granularity = 'agent'\nretention_per_session = 7\n",
        ),
        (
            "aistack.config.json",
            f'{{"x": [], "checkpointing": {{"enabled": true, {AGENT}, "retentionPerSession": 7}}}}',
        ),
        (
            "aistack.config.json",
            f'\ufeff{{"checkpointing": {{"enabled": true, {AGENT}, "retention_per_session": 7}}}}',
        ),
    ],
)
def test_a_file_gives_the_settings_named_or_found_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    assert load_config(tmp_path / name) == ON
    monkeypatch.chdir(tmp_path)
    assert load_config() == ON


def test_durable_toml_comes_first_and_without_any_file_there_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config() == CheckpointingConfig()
    Path("aistack.config.json").write_text('{"checkpointing": {"enabled": true}}')
    assert load_config().enabled
    Path("durable.toml").write_text("[checkpointing]\nenabled = false\n")
    assert not load_config().enabled


@pytest.mark.parametrize("text", ["", "{}"])
def test_a_file_without_the_block_gives_the_defaults(tmp_path: Path, text: str) -> None:
    path = tmp_path / ("x.toml" if not text else "x.json")
    path.write_text(text)
    assert load_config(path) == CheckpointingConfig()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("durable.toml", "[checkpointing]\nenabled = yes\n", "is no TOML"),
        ("a.json", "{'checkpointing': {}}", "is no JSON"),
        ("a.json", "[" * 100_000, "is no JSON"),
        ("a.json", "[]", "no table"),
        ("a.json", '{"checkpointing": true}', "no table"),
        ("a.json", '{"checkpointing": {"retentionPerSession": -5}}', "a.json.*retentionPerSession"),
        ("a.json", '{"checkpointing": {"backend": "s3"}}', "a.json.*backend"),
        ("durable.toml", "[checkpointing]\nretentoin = 5\n", "durable.toml.*retentoin"),
    ],
)
def test_a_file_that_can_not_be_used_is_told_of_with_its_name(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=told):
        load_config(tmp_path / name)


def test_a_file_that_was_named_has_to_be_there_and_be_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="can't be read"):
        load_config(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        load_config(tmp_path / "x.toml")
