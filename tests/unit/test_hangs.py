"""A test that hangs in virtual time fails, in both doors, and the next test runs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.programs import PATIENCE, ROOT

HANGING = """
import asyncio, os, time
import pytest, trio
from hypothesis import given, strategies as st
from trio.testing import MockClock
from tests.support import doors, hangs

hangs.WAITS, hangs.SPINS = 0.6, 0.3
hangs.ROOT = os.path.dirname(__file__)

async def waits_inside():
    await trio.sleep_forever()

async def test_waits(autojump_clock):
    await trio.sleep(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits_inside, name="the one that waits")

async def test_waits_for_a_clock_that_stands(mock_clock):
    await trio.sleep(1)

async def test_waits_in_a_shield(autojump_clock):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

@given(number=st.integers(min_value=7, max_value=7))
def test_waits_in_an_example(number):
    async def main():
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ValueError("told otherwise") from None
    trio.run(main, clock=MockClock(autojump_threshold=0))

async def test_runs_at_one_moment(autojump_clock):
    while True:
        await trio.lowlevel.checkpoint()

async def test_ticks(autojump_clock):
    async with hangs.within(100), trio.open_nursery() as nursery:
        nursery.start_soon(waits_inside, name="the one beside it")
        while True:
            await trio.sleep(30)

async def test_runs_without_a_step(autojump_clock):
    while True:
        pass

@pytest.mark.asyncio_only
async def test_asyncio_waits():
    await asyncio.create_task(asyncio.Event().wait(), name="the other that waits")

@pytest.mark.asyncio_only
async def test_asyncio_waits_after_a_timer():
    await asyncio.sleep(5)
    await asyncio.Future()

@pytest.mark.asyncio_only
async def test_asyncio_runs_without_a_step():
    while True:
        pass

async def test_is_woken_by_a_thread(autojump_clock):
    before = time.process_time()
    for _ in range(10):
        await trio.to_thread.run_sync(time.sleep, 0.1)
    assert trio.current_time() < 1
    assert time.process_time() - before < 0.6  # while the thread works the loop does not spin
    await trio.sleep(1000)

@pytest.mark.both_doors
async def test_passes(autojump_clock):
    await trio.sleep(1000)

async def test_passes_in_its_time(autojump_clock):
    async with hangs.within(100):
        await trio.sleep(99)
    await trio.sleep(99)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "test_hanging.py").write_text(HANGING)
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"]
    played = subprocess.run(
        [*command, "-c", ROOT / "pyproject.toml", "--rootdir", folder, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return played.stdout + played.stderr


def section(told: str, name: str) -> str:
    """What is told of a test that failed."""
    (found,) = re.findall(rf"^_+ {name}(?:\[\w+\])? _+$(.*?)(?=^___|^===)", told, re.M | re.S)
    return str(found)


def test_each_test_that_hangs_fails_and_the_others_pass(told: str) -> None:
    assert "10 failed, 4 passed" in told, told


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (
            "test_waits",
            ["all tasks wait for ever", "task the one that waits", "waits_inside"],
        ),
        ("test_waits_for_a_clock_that_stands", ["all tasks wait for ever", "trio.sleep(1)"]),
        ("test_waits_in_a_shield", ["all tasks wait for ever", "await trio.sleep_forever()"]),
        ("test_waits_in_an_example", ["all tasks wait for ever", "number=7"]),
        ("test_runs_at_one_moment", ["something runs for ever at 0.0 s"]),
        ("test_ticks", ["it has not ended after 100 s", "task the one beside it"]),
        ("test_runs_without_a_step", ["something runs for ever at 0.0 s", "while True"]),
        ("test_asyncio_waits", ["all tasks wait for ever", "task the other that waits"]),
        ("test_asyncio_waits_after_a_timer", ["all tasks wait", "await asyncio.Future()"]),
        ("test_asyncio_runs_without_a_step", ["something runs for ever at 0.0 s", "while True"]),
    ],
)
def test_a_hang_is_told_with_the_stacks_of_its_tasks(
    told: str, name: str, texts: list[str]
) -> None:
    said = section(told, name)
    assert [text for text in texts if text not in said] == [], said
