"""The alerts and the dashboard of `examples/monitoring`, evaluated by Prometheus' own `promtool`.

Each test makes an incident over a store, on virtual time. Two processes export its figures, which
are scraped every 15 seconds, as Prometheus would; `promtool test rules` then says which alerts
fired at which minute, and what the panels show.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from trio_lanes import RateLimit
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    StoreUnavailableError,
    open_durable_lanes,
)
from trio_lanes.instruments.prometheus import StoreCollector

pytestmark = pytest.mark.needs("promtool")

FILES: Final = Path(__file__).parents[2] / "examples/monitoring"
EVERY: Final = 15  # seconds between two scrapes
BUDGET: Final = RateLimit(100, per=36_000.0, unit="usd", algorithm="sliding")
FIRING: Final = 'count by (alertname) (ALERTS{alertstate="firing"})'
"""Which alerts fire; of how many series each."""


class Scraped:
    """What was scraped of two processes, from the beginning on."""

    def __init__(self) -> None:
        self._registries: dict[str, CollectorRegistry] = {}
        self._values: dict[str, dict[int, float]] = {}
        self._count = 0

    @asynccontextmanager
    async def of(self, store: MemoryStore) -> AsyncIterator[DurableLanes]:
        """Export the figures of a store by two processes; give the lanes of one."""
        async with AsyncExitStack() as stack:
            for name in ("web-1", "web-2"):
                opening = open_durable_lanes(store.another(), {}, {}, worker=False)
                lanes = await stack.enter_async_context(opening)
                registry = self._registries[name] = CollectorRegistry()
                StoreCollector(lanes, registry=registry)
            await trio.sleep(1)  # the reads are before the scrapes
            yield lanes

    async def minutes(self, number: int) -> int:
        """Let time pass, and scrape; return the time of the last scrape, in seconds."""
        for _ in range(number * 60 // EVERY):
            for pod, registry in self._registries.items():
                of = f'instance="{pod}:9000",pod="{pod}",job="app"'
                for metric in registry.collect():
                    for sample in metric.samples:
                        labels = "".join(f',{key}="{text}"' for key, text in sample.labels.items())
                        values = self._values.setdefault(f"{sample.name}{{{of}{labels}}}", {})
                        values[self._count] = sample.value
            self._count += 1
            await trio.sleep(EVERY)
        return (self._count - 1) * EVERY

    def check(self, folder: Path, expected: Sequence[tuple[int, str, Mapping[str, float]]]) -> None:
        """Check what expressions give: (time, expression, values by the text of the labels)."""
        series = [
            {
                "series": name,
                "values": " ".join(str(values.get(n, "_")) for n in range(self._count)),
            }
            for name, values in self._values.items()
        ]
        tests = [
            {
                "expr": expression,
                "eval_time": f"{time}s",
                "exp_samples": [
                    {"labels": labels, "value": value} for labels, value in found.items()
                ],
            }
            for time, expression, found in expected
        ]
        unit = {"interval": f"{EVERY}s", "input_series": series, "promql_expr_test": tests}
        whole = {
            "rule_files": [str(FILES / "alerts.yml")],
            "evaluation_interval": f"{EVERY}s",
            "tests": [unit],
        }
        (folder / "test.yml").write_text(json.dumps(whole))  # JSON is YAML
        done = subprocess.run(
            ["promtool", "test", "rules", folder / "test.yml"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def fires(*names: str) -> dict[str, float]:
    """Return which alerts fire, each of one series."""
    return {f'{{alertname="TrioLanes{name}"}}': 1.0 for name in names}


async def fail(payload: object) -> None:
    raise ValueError(payload)


@asynccontextmanager
async def worker(store: MemoryStore, lanes: Mapping[str, Any]) -> AsyncIterator[DurableLanes]:
    handlers: Mapping[str, Callable[[Any], Awaitable[None]]] = {"sleep": trio.sleep, "fail": fail}
    options: Any = {"retry": RetryPolicy(max_attempts=1), "grace": 0, "quotas": {"usd": BUDGET}}
    async with open_durable_lanes(store.another(), handlers, lanes, **options) as opened:
        yield opened


async def test_a_store_that_cannot_be_read_is_told(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with worker(store, {"main": 1}), scraped.of(store):
        quiet = await scraped.minutes(3)
        with monkeypatch.context() as patch:

            async def look(*args: object) -> None:
                raise StoreUnavailableError("away")

            patch.setattr(MemoryStore, "look", look)
            told = await scraped.minutes(4)
        over = await scraped.minutes(1)
    scraped.check(tmp_path, during(quiet, told, over, "StoreUnread"))


async def test_work_that_no_worker_runs_is_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with scraped.of(store) as asking:
        async with worker(store, {"main": 1}) as lanes:
            await lanes.submit("sleep", 0, delay=300)  # it falls due when nobody is there
            quiet = await scraped.minutes(2)
        still = await scraped.minutes(2)
        told = await scraped.minutes(5)
        async with worker(store, {"main": 1}):
            over = await scraped.minutes(1)
        await asking.submit("sleep", 0)  # and now one waits
        again = await scraped.minutes(4)
    whole = during(quiet, told, over, "NoWorker")
    scraped.check(tmp_path, [*whole, (still, FIRING, {}), (again, FIRING, fires("NoWorker"))])


async def test_a_lane_in_which_nothing_ends_is_told(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with worker(store, {"main": 2, "cron": 1}) as lanes, scraped.of(store):
        for _ in range(60):  # more than it can run, and work goes on
            await lanes.submit("sleep", 60)
        await lanes.submit("sleep", 1e6, lane="cron")  # a long body, and none waits for it
        quiet = await scraped.minutes(25)
        hung = [await lanes.submit("sleep", 1e6, priority=1) for _ in range(2)]
        told = await scraped.minutes(20)
        for job in hung:
            await lanes.cancel(job.id)
        over = await scraped.minutes(2)
    scraped.check(tmp_path, during(quiet, told, over, "Standstill"))


async def test_dead_letters_are_told_until_they_are_purged_or_an_hour_old(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with worker(store, {"main": 2}) as lanes, scraped.of(store):
        quiet = await scraped.minutes(2)
        await lanes.submit("fail")
        told = await scraped.minutes(2)
        await lanes.purge()
        over = await scraped.minutes(1)
        await lanes.submit("fail")
        again = await scraped.minutes(50)
        old = await scraped.minutes(12)
    whole = [*during(quiet, told, over, "DeadLetters"), (old, FIRING, {})]
    scraped.check(tmp_path, [*whole, (again, FIRING, fires("DeadLetters"))])


async def test_a_schedule_that_skips_is_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with worker(store, {"main": 2}) as lanes, scraped.of(store):
        await lanes.schedule("often", "sleep", 90, every=600)
        quiet = await scraped.minutes(15)
        await lanes.schedule("often", "sleep", 3000, every=600)
        told = await scraped.minutes(60)
        await lanes.schedule("often", "sleep", 90, every=600)
        over = await scraped.minutes(120)
    scraped.check(tmp_path, during(quiet, told, over, "ScheduleSkips"))


async def test_any_other_problem_is_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with worker(store, {"main": 2}) as lanes, scraped.of(store):
        quiet = await scraped.minutes(2)
        await lanes.pause("main")
        await lanes.submit("sleep", 1)
        soon = await scraped.minutes(3)
        told = await scraped.minutes(4)
        await lanes.resume("main")
        over = await scraped.minutes(1)
    scraped.check(tmp_path, [*during(quiet, told, over, "Problem"), (soon, FIRING, {})])


def test_a_store_that_no_process_reads_is_told(tmp_path: Path) -> None:
    Scraped().check(tmp_path, [(30, FIRING, {}), (90, FIRING, fires("StoreUnread"))])


def during(
    quiet: int, told: int, over: int, name: str
) -> list[tuple[int, str, Mapping[str, float]]]:
    """Return that an alert fires, and no other, during its incident alone."""
    return [(quiet, FIRING, {}), (told, FIRING, fires(name)), (over, FIRING, {})]


async def test_the_panels_show_each_figure_once_however_many_processes_export_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    store, scraped = MemoryStore(), Scraped()
    async with worker(store, {"main": 2, "tenant:*": 1}) as lanes, scraped.of(store):
        await lanes.schedule("often", "sleep", 1e5, every=600, lane="tenant:cron")
        await lanes.pause("main")
        for _ in range(3):
            await lanes.submit("sleep", 1e6)
        await lanes.submit("sleep", 1e6, delay=1e5)
        await lanes.submit("sleep", 1e6, lane="tenant:a")
        await lanes.quota("usd").spend(usd=75)
        await scraped.minutes(30)
        await lanes.submit("fail", lane="tenant:b")
        now = await scraped.minutes(4)
        problems = Counter(problem.kind for problem in await lanes.health())
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    shown = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels}
    ended = {**dict.fromkeys(("cancelled", "expired", "failed", "succeeded"), 0.0), "dead": 0.2}
    expected: dict[str, list[dict[str, float]]] = {
        "Problems": [{"{}": problems.total()}],
        "Oldest wait": [{"{}": now - 1.0}],
        "Workers": [{"{}": 1.0}],
        "Age of these figures": [{"{}": 1.0}],
        "Waiting": [by_lane(3.0, 0.0)],
        "Running, of the slots": [by_lane(0.0, 2.0), by_lane(2.0, 3.0)],
        "Oldest wait by lane": [by_lane(now - 1.0, 0.0)],
        "Ended, each minute": [{f'{{outcome="{name}"}}': rate for name, rate in ended.items()}],
        "Dead letters": [by_lane(0.0, 1.0)],
        "Parked, and due": [by_lane(1.0, 0.0), by_lane(0.0, 0.0)],
        "Without a handler": [{'{job="app"}': 0.0}],
        "Left of quotas": [{'{job="app",quota="usd"}': 0.25}],
        "Due times skipped, each hour": [{'{job="app",schedule="often"}': 2.0}],
        "Problems by kind": [
            {f'{{job="app",kind="{kind}"}}': number for kind, number in problems.items()}
        ],
        "Longest silence of a worker": [{'{job="app"}': 5.0}],
    }
    assert shown.keys() == expected.keys()
    checks = [
        (now, expression.replace("$job", ".*"), found)
        for title, expressions in shown.items()
        for expression, found in zip(expressions, expected[title], strict=True)
    ]
    scraped.check(tmp_path, checks)


def by_lane(main: float, tenants: float) -> dict[str, float]:
    """Return the values of the lanes of the test, and of the job that is scraped."""
    return {'{job="app",lane="main"}': main, '{job="app",lane="tenant:*"}': tenants}
