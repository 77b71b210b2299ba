"""The benchmarks say what they measured, and measure what they say. No test asks how long anything took."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from durable_core import DurableWorkflowExecutor
from durable_core.records import Segment
from scripts.bench import (
    against_peers,
    checkpoints,
    everything,
    floor,
    journals,
    listing,
    map_floor,
    readme,
    report,
    states,
    steps,
    verify,
    workers,
)
from scripts.bench import map as bench_map
from scripts.bench.peers import asking
from scripts.bench.report import Figure, Spread, spread

TINY = steps.Scale(pairs=2, steps=12, resumed=(9, 30), resumes=2)
VARY = {"started_at", "committed_at", "attempt_id"}


def rows(path: Path) -> list[dict[str, object]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM checkpoints ORDER BY step_index")]


def columns(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM pragma_table_info('checkpoints')").fetchall()


async def ours(path: Path, count: int) -> None:
    steps._outputs[:] = floor.outputs(count)
    await steps.ours_written(path, count)


def test_the_floor_prints_how_many_steps_it_wrote(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    floor.main(["--steps", "15", "--folder", str(tmp_path)])

    printed = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert int(printed["steps"]) == 15
    assert int(printed["steps per s"]) > 0
    assert int(printed["bytes per step"]) > floor.OUTPUT_BYTES
    assert float(printed["read back ms"]) > 0
    assert list(tmp_path.iterdir()) == []


async def test_the_floor_writes_records_as_long_as_the_engines(tmp_path: Path) -> None:
    await ours(tmp_path / "ours.db", 12)
    await floor.write(tmp_path / "floor.db", 12)

    def lengths(path: Path) -> list[dict[str, object]]:
        # A run's id, its fence, numbers and NULLs are the same; texts and bytes are as long.
        return [
            {name: len(value) if isinstance(value, str | bytes) else value for name, value in row.items()}
            for row in rows(path)
        ]

    assert lengths(tmp_path / "floor.db") == lengths(tmp_path / "ours.db")


async def test_the_floors_outputs_are_the_engines(tmp_path: Path) -> None:
    await ours(tmp_path / "ours.db", 12)
    await floor.write(tmp_path / "floor.db", 12)

    columns = ("step_id", "step_index", "status", "output_data", "output_hash", "output_size", "codec")
    mine, bare = (
        [[row[column] for column in columns] for row in rows(tmp_path / name)]
        for name in ("ours.db", "floor.db")
    )
    assert bare == mine
    assert [len(row["output_data"]) for row in rows(tmp_path / "floor.db")] == [200] * 12  # type: ignore[arg-type]


async def test_the_floors_table_of_steps_is_the_engines(tmp_path: Path) -> None:
    floor.make(tmp_path / "floor.db").close()
    async with DurableWorkflowExecutor(db_path=tmp_path / "ours.db"):
        pass

    mine, bare = (columns(tmp_path / name) for name in ("ours.db", "floor.db"))
    assert bare == mine
    assert len(bare) == 21


async def test_a_journal_made_for_resuming_has_the_rows_that_the_engine_writes(tmp_path: Path) -> None:
    await ours(tmp_path / "ours.db", 12)
    await steps.make_run(tmp_path / "filled.db", 12)

    def constant(path: Path) -> list[dict[str, object]]:
        return [{name: value for name, value in row.items() if name not in VARY} for row in rows(path)]

    assert constant(tmp_path / "filled.db") == constant(tmp_path / "ours.db")


async def test_a_resume_whose_bodies_run_again_gives_no_figure(tmp_path: Path) -> None:
    steps._outputs[:] = floor.outputs(12)
    path = tmp_path / "filled.db"
    await steps.make_run(path, 12)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM checkpoints WHERE step_index = 5")

    with pytest.raises(RuntimeError, match="1 bodies ran again"):
        await steps.ours_resumed(path, 12)


def test_reopening_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    floor.make(tmp_path / "floor.db").close()

    with pytest.raises(RuntimeError, match="has no run"):
        journals.reopen(tmp_path / "floor.db", "another")


def test_the_benchmark_prints_every_figure_beside_its_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    steps.main(["--json", "--folder", str(tmp_path)], TINY)

    found = json.loads(capsys.readouterr().out)
    assert set(found["machine"]) >= {"date", "machine", "python", "sqlite", "durability", "fdatasync_us"}
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert figures["steps per s, ours to floor"]["target"] == 0.70
    assert figures["bytes per step, ours to floor"]["target"] == 1.15
    for count in TINY.resumed:
        assert figures[f"resume of {count:,} steps"]["value"]["readings"] == TINY.resumes
        assert f"longest stall while {count:,} resume" in figures
    for figure in figures.values():
        value = figure["value"]
        assert value["low"] <= value["median"] <= value["high"]
        assert figure["verdict"] in (("pass", "miss") if figure["target"] is not None else ("",))
    assert list(tmp_path.iterdir()) == []


def test_ratios_agree_with_what_they_are_of(tmp_path: Path) -> None:
    steps._outputs[:] = floor.outputs(12)
    figures = {figure.name: figure.value for figure in asyncio.run(steps.measure_writing(tmp_path, TINY))}

    mine, bare = figures["ours, steps per s"], figures["floor, steps per s"]
    ratio = figures["steps per s, ours to floor"]
    rounding = 1e-9
    assert mine.low / bare.high * (1 - rounding) <= ratio.low <= ratio.high
    assert ratio.high <= mine.high / bare.low * (1 + rounding)
    assert ratio.readings == mine.readings == bare.readings == TINY.pairs
    size = figures["ours, bytes per step"].median / figures["floor, bytes per step"].median
    assert figures["bytes per step, ours to floor"].median == pytest.approx(size)


def test_a_stall_of_the_event_loop_is_seen() -> None:
    stalls: list[float] = []

    async def hold() -> None:
        async with steps._ticking(stalls):
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < 0.02:
                pass

    asyncio.run(hold())
    assert max(stalls) >= 0.015


@pytest.mark.parametrize(
    ("better", "median", "verdict"),
    [("more", 0.7, "pass"), ("more", 0.69, "miss"), ("less", 0.7, "pass"), ("less", 0.71, "miss")],
)
def test_a_figure_passes_on_its_better_side(better: str, median: float, verdict: str) -> None:
    value = Spread(median=median, low=0, high=1, readings=3)
    figure = Figure(name="ratio", unit="x", value=value, target=0.7, better=better)  # type: ignore[arg-type]
    assert figure.verdict == verdict


def test_the_table_shows_median_spread_target_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [
        Figure(name="speed", unit="/s", value=spread([1.0, 4.0, 3.0])),
        Figure(name="ratio", unit="x", value=spread([0.5]), target=0.7, better="more"),
    ]
    report.show({"python": "3"}, figures, as_json=False)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["python", "3"]
    assert lines[3] == ["speed", "3", "1", "4", "/s", "3"]
    assert lines[4] == ["ratio", "0.5", "0.5", "0.5", "x", "1", ">=", "0.7", "miss"]


# ---- Maps ----

TINY_MAP = bench_map.Scale(pairs=2, items=600, growth=(40, 90), large=300, shaped=6, seconds=(0.0, 0.01))


def segments(path: Path) -> list[dict[str, object]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM segments ORDER BY seq")]


async def test_the_floor_of_maps_writes_segments_as_long_as_the_engines(tmp_path: Path) -> None:
    ours = await bench_map.ours_written(tmp_path / "ours.db", 600)
    await map_floor.write(tmp_path / "floor.db", ours.sizes)

    def lengths(path: Path) -> list[dict[str, object]]:
        # Compressed, the marks of other items are a few bytes longer or shorter.
        return [
            {name: len(value) if isinstance(value, str | bytes) else value for name, value in row.items()}
            | {"data": round(len(row["data"]), -2)}  # type: ignore[arg-type]
            for row in segments(path)
        ]

    assert sum(ours.sizes) == 600
    assert lengths(tmp_path / "floor.db") == lengths(tmp_path / "ours.db")


async def test_the_floors_table_of_segments_is_the_engines(tmp_path: Path) -> None:
    await map_floor.write(tmp_path / "floor.db", [3])
    async with DurableWorkflowExecutor(db_path=tmp_path / "ours.db"):
        pass

    def of(path: Path) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT * FROM pragma_table_info('segments')").fetchall()

    assert of(tmp_path / "floor.db") == of(tmp_path / "ours.db")
    assert len(of(tmp_path / "floor.db")) == 16


def test_a_segment_costs_a_write_unit_for_each_kilobyte_begun() -> None:
    def units(data: bytes) -> int:
        return bench_map.units_of(
            Segment("r", "m", 0, 0, "a" * 20, 1, items=1, succeeded=1, data=data, codec="json")
        )

    overhead = next(size for size in range(1024) if units(bytes(1024 - size)) == 1)
    assert 100 < overhead < 400
    assert [units(bytes(kb * 1024 - overhead)) for kb in (1, 2, 3)] == [1, 2, 3]
    assert [units(bytes(kb * 1024 - overhead + 1)) for kb in (1, 2, 3)] == [2, 3, 4]


def test_the_benchmark_of_maps_prints_every_figure_beside_its_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bench_map.main(["--json", "--folder", str(tmp_path)], TINY_MAP)

    figures = {figure["name"]: figure for figure in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["ours, items per s"]["target"] == 20_000
    assert figures["journal writes per item"]["verdict"] == "pass"
    assert figures["growth from 40 to 90"]["target"] == 1.3
    assert figures["300 items from JSONL: peak memory"]["target"] == 286
    for size, linger_ms in bench_map.SHAPES:
        units = figures[f"{size} B, linger {linger_ms} ms: write units per item"]["value"]
        assert size / 1024 * 0.7 < units["median"] <= size // 1024 + 2


# ---- Checkpoints ----

FEW = checkpoints.Scale(pairs=2, saves={1_000: 6, 10_000: 3})


@pytest.mark.parametrize("size_bytes", [1_000, 10_000, 1_000_000])
def test_a_benchmarked_state_has_the_size_that_it_is_named_for(size_bytes: int) -> None:
    made = states.state(size_bytes)
    assert 0.95 < len(json.dumps(made)) / size_bytes < 1.1
    assert states.state(size_bytes) == made


def test_the_benchmark_of_checkpoints_prints_rates_and_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpoints.main(["--no-peer", "--json", "--folder", str(tmp_path)], FEW)
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["figures"]}
    assert found["1 KB: ours, saves per s"]["value"]["readings"] == 2
    assert found["1 KB: ours, bytes per save"]["value"]["median"] > 1_000
    assert found["10 KB: ours, bytes per save"]["value"]["median"] > 5_000


def test_the_benchmark_of_workers_prints_every_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workers.main(
        ["--json", "--folder", str(tmp_path)], workers.Scale(rounds=1, runs=5, sleepers=1, idle_s=0.1)
    )

    figures = {one["name"]: one["value"]["median"] for one in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["tiny runs by one worker, per s"] > 0
    assert figures["sleeping runs woken after their time"] >= 0
    assert 8 * 3600 < figures["idle worker, DynamoDB requests per h"] < 8 * 3600 * 2
    assert list(tmp_path.iterdir()) == []


async def test_listings_are_measured_over_what_they_ask_for() -> None:
    found = {row["asked"]: row["found"] for row in await listing.run(400)}
    assert found == {
        "the first page": 100,
        "a page in the middle": 100,
        "failed ones": 4,
        "of one workflow": 20,
        "created before the middle": 100,
        "with a text that many have": 4,
        "with a text that none has": 0,
        "one by its beginning": 1,
    }


# ---- All of them ----


def test_two_drivers_of_one_run_run_no_body_twice(tmp_path: Path) -> None:
    scale = against_peers.QUICK._replace(driven=4)
    (figure,) = against_peers.two_drivers(tmp_path, scale, ("ours",))
    assert figure.name.startswith("bodies of 4 that ran twice under two drivers, ours (")
    assert (figure.value.median, figure.verdict) == (0, "pass")


def test_each_peer_has_a_program_and_pinned_packages() -> None:
    pinned = asking.pinned()
    assert set(pinned) == set(asking.PROGRAMS)
    assert all((asking.HERE / program).exists() for program in asking.PROGRAMS.values())
    assert all("==" in packages[0] for packages in pinned.values())


def test_a_peer_that_ends_is_told_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "python_of", lambda _: Path(sys.executable))  # where that peer isn't
    with pytest.raises(RuntimeError, match=r"the peer dbos ended: (?s:.*)No module named"):
        asking.Peer("dbos")


def test_all_figures_are_in_one_table_and_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "one.py"
    program.write_text(
        "from scripts.bench.report import Figure, machine, show, spread\n"
        "from pathlib import Path\n"
        "speed = Figure(name='speed', unit='x', value=spread([1, 2, 4]), target=3, better='more')\n"
        "show(machine(Path('.')), [speed], as_json=True)\n"
    )
    failing = tmp_path / "two.py"
    failing.write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(everything.HERE.parents[1]))
    benches = (everything.Bench("One", str(program)), everything.Bench("Two", str(failing)))
    monkeypatch.setattr(everything, "ALL", benches[:1])
    assert everything.main(["--out", str(tmp_path)]) == 0
    assert "| speed | 2 x | 1 x | 4 x | 3 | >= 3 | miss |" in (tmp_path / "bench.md").read_text()
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["One"]["machine"]["python"]
    assert re.search(r"One: .*\n  \d+ s\nAll in 0.\d minutes", capsys.readouterr().err)
    monkeypatch.setattr(everything, "ALL", benches)
    monkeypatch.setattr(readme, "ROOT", tmp_path)  # where no README is
    assert everything.main(["--out", str(tmp_path), "--readme"]) == 1
    with pytest.raises(SystemExit):
        everything.main(["--out", str(tmp_path), "--readme", "--only", "one"])
    assert '"failed": 3' in (tmp_path / "bench.md").read_text()


def test_a_benchmark_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "one.py"
    hanging.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(everything, "MOST_S", 0.5)
    found = everything.found_by(everything.Bench("One", str(hanging)), quick=True)
    assert found == {"failed": "it took longer than 0.5 s"}


def figure(name: str, target: float | None) -> dict[str, Any]:
    made = Figure(name=name, unit="x", value=spread([1, 2, 4]), target=target, better="more")
    return {**asdict(made), "verdict": made.verdict}


def test_figures_with_targets_and_those_beside_peers_come_into_the_readme(tmp_path: Path) -> None:
    about = {"date": "2026-11-30", "python": "3.11.7", "durability": "WAL", "dbos": "dbos 3.4.0"}
    found = {
        "Steps": {"machine": about, "figures": [figure("speed", 3), figure("memory", None)]},
        "Beside peers": {"machine": about, "figures": [figure("dbos", None)]},
        "Prose": {"text": "some"},
        "Failing": {"failed": 3},
    }
    copy = tmp_path / "README.md"
    shutil.copy(readme.ROOT / "README.md", copy)
    for _ in range(2):
        readme.write(found, copy)
    before, _, rest = copy.read_text("utf-8").partition(readme.BEGIN)
    written, _, after = rest.partition(readme.END)
    assert "| speed | 2 x | 1 to 4 | ≥ 3 | miss |" in written
    assert "| dbos | 2 x | 1 to 4 |  |  |" in written
    assert "date 2026-11-30, python 3.11.7." in written
    assert written.count("dbos: dbos 3.4.0.") == 2
    assert "memory" not in written
    assert "## How fast, beside others" in before
    assert "## Exit codes" in after


@pytest.mark.parametrize("text", ["", readme.BEGIN, readme.END])
def test_a_readme_without_its_marks_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(SystemExit, match="lacks the lines"):
        readme.write({"One": {"machine": {}, "figures": []}}, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == text


async def test_verifying_is_measured_over_a_run_that_is_healthy() -> None:
    found = await verify.run(30)
    assert found["steps"] == 30
    assert min(found["verify_s"], found["bare_read_s"], found["ratio"]) > 0
