"""The mistakes of a first hour, and what their errors teach."""

import importlib
import math
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import trio

import trio_lanes
import trio_lanes.aio
from trio_lanes import Job, LaneConfig, Lanes, open_lanes
from trio_lanes.durable import MemoryStore, Submission, open_durable_lanes


async def answer(text: str = "hello") -> str:
    await trio.lowlevel.checkpoint()
    return text


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("sesion", r"no option 'sesion'; did you mean 'session'\?"),
        ("timeuot", r"no option 'timeuot'; did you mean 'timeout'\?"),
        ("text", r"no option 'text'\. .* functools\.partial"),
    ],
)
async def test_an_unknown_option_is_answered_with_the_nearest_and_with_the_cure(
    option: str, message: str
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        calls: list[Callable[..., Any]] = [
            lanes.submit_nowait,
            lanes.start_soon,
            lanes.session("ann").submit_nowait,
        ]
        for call in calls:
            with pytest.raises(TypeError, match=message):
                call(answer, **{option: "ann"})
        with pytest.raises(TypeError, match=message):
            await lanes.run(answer, **{option: "ann"})  # type: ignore[arg-type]
        assert not lanes.jobs()


@pytest.mark.parametrize("option", ["timeout", "queue_timeout", "idle_timeout"])
async def test_a_timeout_of_none_is_none_also_where_the_lane_has_one(
    option: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, **{option: 1.0})}) as lanes:  # type: ignore[arg-type]
        first = lanes.submit_nowait(trio.sleep, 3, **{option: None})  # type: ignore[arg-type]
        second = lanes.submit_nowait(trio.sleep, 3, **{option: None})  # type: ignore[arg-type]
        await first.wait()
        await second.wait()
    config = LaneConfig(**{option: None})  # type: ignore[arg-type]
    assert getattr(config, option) == math.inf


async def test_a_durable_job_takes_a_timeout_of_none_too() -> None:
    async with open_durable_lanes(MemoryStore(), {"answer": answer}) as lanes:
        assert await (await lanes.submit("answer", "hi", timeout=None)).wait() == "hi"
        (job,) = await lanes.submit_many([Submission(name="answer", payload="ho", timeout=None)])
        assert await job.wait() == "ho"


async def test_awaiting_a_job_itself_names_the_wait() -> None:
    async with open_lanes({"main": 1}) as lanes:
        job: Any = lanes.submit_nowait(answer)
        with pytest.raises(TypeError, match=r"await job\.wait\(\)"):
            await job
        assert await job.wait() == "hello"


async def test_run_gives_its_caller_the_handle_when_the_job_is_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=0)}) as lanes:
        handles: list[Job[Any]] = []
        assert await lanes.run(answer, on_submit=handles.append) == "hello"
        (job,) = handles
        assert await job.wait() == "hello"

        async def outer() -> str:
            return await lanes.run(answer, "inner", yield_slot=True, on_submit=handles.append)

        assert await lanes.run(outer) == "inner"
        assert handles[1].name.endswith("answer")

        gate = trio.Event()
        lanes.start_soon(gate.wait)
        async with trio.open_nursery() as nursery:  # a caller that waits for room has no job yet
            nursery.start_soon(partial(lanes.run, answer, on_submit=handles.append))
            await trio.testing.wait_all_tasks_blocked()
            assert len(handles) == 2
            gate.set()
        assert len(handles) == 3

        def fails(job: Job[Any]) -> None:
            raise ZeroDivisionError

        assert await lanes.run(answer, on_submit=fails) == "hello"
        assert "on_submit of" in caplog.text
        with pytest.raises(ValueError, match=r"on_submit is for run\(\)"):
            lanes.submit_nowait(answer, on_submit=handles.append)


@pytest.mark.parametrize("opener", [open_lanes, trio_lanes.aio.open_lanes])
def test_lanes_that_are_not_open_name_the_block(opener: Callable[..., Any]) -> None:
    with pytest.raises(AttributeError, match=r"'async with open_lanes.* and 'lanes\.run' inside"):
        _ = opener({"main": 2}).run


async def test_the_lanes_without_a_configuration_are_those_of_an_agent_gateway() -> None:
    async with open_lanes() as lanes:
        widths = {name: lanes.lane(name).concurrency for name in lanes.statistics().lanes}
    assert widths == {"main": 4, "cron": 1, "subagent": 8}
    for name in widths:
        assert f'``"{name}"``' in str(open_lanes.__doc__)


def test_the_version_is_that_of_the_package_the_changelog_and_the_citation() -> None:
    assert trio_lanes.__version__ == version("trio-lanes")
    root = Path(__file__).parents[3]
    assert f"\nversion: {trio_lanes.__version__}\n" in (root / "CITATION.cff").read_text("utf-8")
    assert f"\n## [{trio_lanes.__version__}] - " in (root / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("trio_lanes.monitor", "starlette", "monitor"),
        ("trio_lanes.instruments.prometheus", "prometheus_client", "prometheus"),
        ("trio_lanes.instruments.otel", "opentelemetry", "otel"),
    ],
)
def test_a_module_whose_extra_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str
) -> None:
    for name in list(sys.modules):
        if name == module or name.startswith((module + ".", package + ".")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(module)
    assert f"{module} needs {package}: pip install 'trio-lanes[{extra}]'" in str(caught.value)
    assert f"in a checkout: pip install '.[{extra}]'" in str(caught.value)


def test_an_instance_of_lanes_is_made_by_opening_alone() -> None:
    with pytest.raises(TypeError, match="only open_lanes makes a Lanes"):
        Lanes()
