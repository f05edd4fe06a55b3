"""A durable inbox whose process is killed in the middle of a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import ROOT, running

PROGRAM = ROOT / "tests" / "agents" / "durable_inbox_program.py"


@pytest.mark.real_processes
async def test_a_turn_of_a_killed_process_is_finished_by_the_next_process(tmp_path: Path) -> None:
    took = "turn of ['1', '2'] took ['text 3']\n"
    async with running(PROGRAM, tmp_path, "post") as first:
        await first.until(took)
        first.process.kill()
        assert await first.exit_code() == -9
    async with running(PROGRAM, tmp_path, "goes-on") as second:
        await second.until(took)
        await second.until("settled ['ran', 'ran', 'merged', 'steered']\n")
        assert await second.exit_code() == 0
    assert (tmp_path / "transcript.txt").read_text() == "0\n1\n2\n3\n"
