"""Whether the process that drives a run is dead for certain; whatever is unknown counts as alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core.engine import process
from durable_core.engine.process import is_dead, this_process, told
from tests.waiting import until


def described(**changes: Any) -> str:
    return json.dumps(json.loads(this_process()) | changes)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    found = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield found
    found.kill()
    found.wait()
    assert found.stdin is not None
    found.stdin.close()


def of(child: subprocess.Popen[bytes]) -> str:
    return described(pid=child.pid, started=process._start_time(child.pid))


def test_this_process_is_alive_and_told_by_host_and_pid() -> None:
    assert is_dead(this_process()) is False
    assert str(os.getpid()) in told(this_process())
    assert json.loads(this_process())["host"] in told(this_process())


def test_a_child_is_alive_until_it_is_killed_and_dead_before_and_after_it_is_reaped(
    child: subprocess.Popen[bytes],
) -> None:
    owner = of(child)
    assert is_dead(owner) is False
    child.kill()
    until(lambda: is_dead(owner), "the death of the child")
    os.kill(child.pid, 0)  # a zombie still answers
    child.wait()
    assert is_dead(owner) is True


def test_a_stopped_process_is_alive(child: subprocess.Popen[bytes]) -> None:
    import signal

    owner = of(child)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: _state(child.pid) == "T", "the stop")
    assert is_dead(owner) is False


def _state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]


def test_a_pid_that_was_given_to_another_process_is_not_the_owner(child: subprocess.Popen[bytes]) -> None:
    started = process._start_time(child.pid)
    assert started is not None
    assert is_dead(described(pid=child.pid, started=started - 1)) is True


def test_a_process_that_is_named_like_a_stat_line_is_read_rightly(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to("/bin/sleep")
    found = subprocess.Popen([odd, "30"])
    try:
        until(lambda: "a) Z" in Path(f"/proc/{found.pid}/comm").read_text(), "its name")
        assert is_dead(of(found)) is False
        assert isinstance(process._start_time(found.pid), int)
    finally:
        found.kill()
        found.wait()


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"}, {"host": ""}, {"host": None}, {"boot": "another"}, {"boot": ""},
        {"boot": None},
        {"pid_namespace": "pid:[1]"}, {"pid_namespace": ""}, {"pid": None}, {"pid": "1"}, {"started": None},
        {"started": "x"}, {"pid": [1]},
    ],
    ids=repr,
)  # fmt: skip
def test_whatever_is_unknown_counts_as_alive(changes: dict[str, Any]) -> None:
    dead = {"pid": 2**22 + 1, "started": 1}
    assert is_dead(described(**dead)) is True
    assert is_dead(described(**(dead | changes))) is False


@pytest.mark.parametrize(
    "text", [None, "", "{}", "null", "[]", "1", "not json", '{"pid"', '"x"', "{'pid': 1}"]
)
def test_an_owner_that_cannot_be_read_counts_as_alive_and_can_be_told(text: str | None) -> None:
    assert is_dead(text) is False
    assert "process" in told(text)


def test_where_the_kernel_tells_nothing_everybody_counts_as_alive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dead = described(pid=2**22 + 1, started=1)
    assert is_dead(dead) is True
    monkeypatch.setattr(process, "_PROC", tmp_path)
    process._described.cache_clear()
    try:
        assert is_dead(dead) is False
        assert is_dead(this_process()) is False
        assert is_dead(described()) is False
    finally:
        process._described.cache_clear()


def test_a_forked_child_tells_itself_and_not_its_parent() -> None:
    code = (
        "import json, os\n"
        "from durable_core.engine.process import this_process\n"
        "before = json.loads(this_process())\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    now = json.loads(this_process())\n"
        "    own = now['pid'] == os.getpid() != before['pid']\n"
        "    os._exit(0 if own and isinstance(now['started'], int) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
