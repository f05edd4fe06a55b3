"""Where an incident is played: lanes, a store, a page, commands, the log and metrics.

An incident begins in virtual time. Then a server shows its page, and virtual time goes as fast as
real time, so that a browser and the commands can ask.
"""

from __future__ import annotations

import io
import logging
import math
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from functools import partial
from typing import Any

import click
import httpx2
import trio
from prometheus_client import CollectorRegistry
from rich.console import Console
from trio.testing import MockClock

from trio_lanes import Lanes, open_lanes
from trio_lanes.command import _page
from trio_lanes.command._show import show
from trio_lanes.command._store_commands import COMMANDS
from trio_lanes.command._top import top
from trio_lanes.durable import DurableLanes, MemoryStore, open_durable_lanes
from trio_lanes.instruments.logging import log_health
from trio_lanes.instruments.prometheus import PrometheusInstrument, StoreCollector
from trio_lanes.monitor import Role, serve_monitor

OPERATOR = {"X-User": "operator"}


def _role(connection: Any) -> Role:
    return "operate" if connection.headers.get("x-user") == "operator" else "read"


class _Handler(logging.Handler):
    """Puts each record into a list."""

    def __init__(self, lines: list[logging.LogRecord]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record)


class Stage:
    """One incident that is played."""

    def __init__(self, clock: MockClock) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        self.lines: list[logging.LogRecord] = []
        self.lanes: Lanes
        self.durable: DurableLanes | None = None
        self.url = ""
        self.ids: list[int] = []
        """Those of the jobs that the incident has submitted."""
        self.look: Callable[[object], Awaitable[object]] | None = None
        """What befalls a question to the store; None answers it."""
        self.heals = False
        """Whether what failed is mended."""
        self._store: MemoryStore | None = None

    # ---- what an incident opens

    @asynccontextmanager
    async def core(self, lanes: Mapping[str, Any], **options: Any) -> AsyncIterator[Lanes]:
        """Open lanes of the core."""
        figures = PrometheusInstrument(registry=self.registry)
        async with open_lanes(lanes, instruments=[figures], **options) as self.lanes:
            async with self._watched(self.lanes):
                yield self.lanes
            self.lanes.resume()
            self.lanes.clear()
            self.lanes.reset()

    @asynccontextmanager
    async def stored(
        self,
        handlers: Mapping[str, Any],
        lanes: Mapping[str, Any],
        store: MemoryStore | None = None,
        **options: Any,
    ) -> AsyncIterator[DurableLanes]:
        """Open durable lanes over a store in memory."""
        self._store = self._befallen(store or MemoryStore())
        opening = open_durable_lanes(self._store, handlers, lanes, grace=0, **options)
        async with opening as self.durable:
            StoreCollector(self.durable, registry=self.registry)
            assert self.durable.local is not None
            self.lanes = self.durable.local
            async with self._watched(self.durable):
                yield self.durable

    @asynccontextmanager
    async def _watched(self, lanes: Any) -> AsyncIterator[None]:
        """Serve the page, and write the log."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(self._log, lanes))
            serve = partial(serve_monitor, self.lanes, durable=self.durable, port=0)
            self.url = await nursery.start(partial(serve, authorize=_role))
            yield
            nursery.cancel_scope.cancel()

    def another_store(self) -> MemoryStore:
        """Return the store for another process."""
        assert self._store is not None
        return self._befallen(self._store.another())

    def _befallen(self, store: Any) -> MemoryStore:
        look = store.look

        async def asked(question: object) -> object:
            answer = None if self.look is None else await self.look(question)
            return await look(question) if answer is None else answer

        store.look = asked
        return store  # type: ignore[no-any-return]

    async def _log(self, lanes: Any) -> None:
        handler = _Handler(self.lines)
        logger = logging.getLogger("trio_lanes.health")
        logger.addHandler(handler)
        level, logger.level = logger.level, logging.INFO
        try:
            await log_health(lanes, every=30.0)
        finally:
            logger.removeHandler(handler)
            logger.level = level

    # ---- what an operator asks

    @asynccontextmanager
    async def real_time(self, pace: float = 1.0) -> AsyncIterator[None]:
        """Let the clock go like real time, so that the page can be asked."""
        self.clock.autojump_threshold = math.inf
        self.clock.rate = pace
        try:
            yield
        finally:
            self.clock.rate = 0
            self.clock.autojump_threshold = 0

    def named(self, text: str) -> str:
        """Return a text with the ids of jobs in place of #1, #2 and so on."""
        return re.sub(r"#(\d+)", lambda number: str(self.ids[int(number[1]) - 1]), text)

    async def says(self, line: str) -> tuple[int, str]:
        """Return the exit code and the output of a command; of the page where there is no store."""
        verb, *rest = shlex.split(self.named(line))
        if verb == "top":
            console = Console(file=io.StringIO())
            code = await top(self.url, {}, console)
            return code, " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
        act, parameters = next((a, p) for a, p in COMMANDS.items() if a.__name__ == verb)
        asked = click.Command(verb, params=list(parameters)).make_context(verb, rest).params
        page, _ = asked.pop("page", None), asked.pop("headers", None)
        if page is not None or self._store is None:
            asked.pop("standstill_after", None)
            answer = await getattr(_page, verb)(self.url, {}, **asked)
        else:
            opening = open_durable_lanes(self.another_store(), {}, {}, worker=False)
            async with opening as asking:
                answer = await act(asking, **asked)
        with redirect_stdout(io.StringIO()) as out:
            show(answer, as_json=False)
        return answer.code, " ".join(out.getvalue().split())

    async def act(self, **action: Any) -> None:
        """Do what a button of the page does."""
        async with httpx2.AsyncClient(base_url=self.url, headers=OPERATOR) as client:
            token = (await client.get("access")).json()["token"]
            headers = {"X-Lanes-Token": token, "Origin": self.url.rstrip("/")}
            answer = await client.post("act", json=action, headers=headers)
            assert answer.status_code == 200, answer.text

    def problems(self) -> dict[str, float]:
        """Return what the metrics count as problems, by kind."""
        found: dict[str, float] = {}
        for metric in self.registry.collect():
            if metric.name in ("trio_lanes_problems", "trio_lanes_store_problems"):
                found |= {one.labels["kind"]: one.value for one in metric.samples if one.value}
        return found

    def figure(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric."""
        return self.registry.get_sample_value(f"trio_lanes_{name}", labels)

    def logged(self, event: str) -> set[str]:
        """Return the kinds of the problems that the log says have come, or have gone."""
        return {vars(one)["kind"] for one in self.lines if vars(one)["event"] == event}
