"""``trio-lanes replay``: a recording goes through lanes again, with other limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import open_lanes
from trio_lanes.command import main
from trio_lanes.testing import LaneRecorder


@pytest.fixture
def file(tmp_path: Path) -> str:
    recorder = LaneRecorder()

    async def work() -> None:
        async with open_lanes({"main": 1, "t:*": 1}, instruments=[recorder]) as lanes:
            for _ in range(4):
                lanes.submit_nowait(trio.sleep, 2)
            lanes.submit_nowait(trio.sleep, 1, lane="t:a")
            lanes.submit_nowait(trio.sleep, 9, lane="t:b").cancel()

    trio.run(work, clock=MockClock(autojump_threshold=0))
    recorder.save(tmp_path / "x.jsonl")
    return str(tmp_path / "x.jsonl")


def test_the_waits_and_the_throughput_are_shown_as_recorded_and_with_another_limit(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", file, "--set", "main=2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [
        "main",
        "recorded",
        "1",
        "4",
        "4",
        "2.00",
        "s",
        "6.00",
        "s",
        "6.00",
        "s",
        "0.50",
    ] in lines
    assert ["replayed", "1", "4", "4", "2.00", "s", "6.00", "s", "6.00", "s", "0.50"] in lines
    more = ["with", "main=2", "2", "4", "4", "0.00", "s", "2.00", "s", "2.00", "s", "1.00"]
    assert more in lines
    assert ["6", "jobs", "in", "8.0", "s"] in lines


def test_without_a_change_the_replay_alone_is_shown(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", file]) == 0
    assert "with" not in capsys.readouterr().out


def test_the_answer_is_json_for_programs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", file, "--json", "--set", "main=inf"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"]["lanes"]["main"]["longest"] == 0
    assert told["recorded"]["total"]["longest"] == 6
    assert (told["jobs"], told["left_out"], told["seconds"]) == (6, 0, 8)


def test_jobs_that_are_not_in_the_recording_are_mentioned(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(file).read_text()
    Path(file).write_text(text.replace('"left_out":0', '"left_out":7'))
    assert main(["replay", file]) == 0
    assert "7 jobs of that time are not in the recording" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "main"], "--set main: 'main' is not of the form NAME=N"),
        (["--set", "main=1", "--set", "main=2"], "--set main=2: 'main' is named twice"),
        (["--set", "main=-1"], "'-1' is neither a whole number from 0 up nor inf"),
        (["--set", "cron=1"], "--set: 'cron' is not in the recording, which has main, t:*"),
    ],
)
def test_a_wrong_limit_is_a_mistake_in_one_line(
    file: str, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", file, *arguments]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_used_is_a_mistake_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "odd").write_text("odd\n")
    assert main(["replay", str(tmp_path / "odd")]) == 2
    assert "line 1: this is not JSON" in capsys.readouterr().err


def test_jobs_of_a_parent_that_never_starts_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = LaneRecorder()

    async def work() -> None:
        async def parent() -> None:
            lanes.submit_nowait(trio.sleep, 1, lane="sub")

        async with open_lanes({"main": 1, "sub": 1}, instruments=[recorder]) as lanes:
            lanes.submit_nowait(parent)

    trio.run(work, clock=MockClock(autojump_threshold=0))
    recorder.save(tmp_path / "x.jsonl")
    assert main(["replay", str(tmp_path / "x.jsonl"), "--set", "main=0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("with main=0" in line for line in lines) == 2  # main, and all
