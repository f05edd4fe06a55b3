"""Limits that tune themselves, against three providers: a simulation."""

import math
import random
from collections.abc import Callable
from typing import Literal

import trio
from trio.testing import MockClock

from trio_lanes import Adaptive, LaneConfig, open_lanes

SECONDS = 160
CALLERS = 40
FIXED = (12, 16, 20, 24, 30)

Limit = int | float | Adaptive


class RefusedError(Exception):
    """The provider has too many calls at once."""


class Provider:
    """It works on some calls at once; up to ``queue`` times as many share it, more are refused."""

    def __init__(self, capacity: Callable[[float], int], queue: float = 1.0) -> None:
        self._capacity = capacity
        self._queue = queue
        self._calls = 0
        self._random = random.Random(1)
        self.answered = self.refused = 0

    async def call(self) -> None:
        capacity = self._capacity(trio.current_time())
        if self._calls >= capacity * self._queue:
            self.refused += 1
            await trio.sleep(0.1)
            raise RefusedError
        self._calls += 1
        await trio.sleep(max(1.0, self._calls / capacity) * self._random.uniform(0.8, 1.2))
        self._calls -= 1
        self.answered += 1


PROVIDERS = {
    "fixed": lambda: Provider(lambda now: 20),
    "bursty": lambda: Provider(lambda now: 12 if now % 50 > 40 else 20, queue=1.5),
    "halved": lambda: Provider(lambda now: 24 if now < SECONDS / 2 else 12, queue=1.5),
}


def adaptive(by: Literal["gradient", "aimd"]) -> Adaptive:
    return Adaptive(low=2, high=64, by=by, overloaded=lambda e: isinstance(e, RefusedError))


async def work(provider: Provider, limit: Limit) -> None:
    """Have callers ask the provider again and again, through a lane."""

    async def ask() -> None:
        while True:
            try:
                await lanes.run(provider.call)
            except RefusedError:
                await trio.sleep(1)

    with trio.move_on_after(SECONDS):
        async with open_lanes(
            {"main": LaneConfig(concurrency=limit, warn_after=math.inf)}
        ) as lanes:
            async with trio.open_nursery() as nursery:
                for _ in range(CALLERS):
                    nursery.start_soon(ask)


def simulate(name: str, limit: Limit) -> tuple[int, int]:
    """Return how many calls a provider has answered and refused."""
    provider = PROVIDERS[name]()
    trio.run(work, provider, limit, clock=MockClock(autojump_threshold=0))
    return provider.answered, provider.refused


def compare(name: str) -> dict[str, tuple[int, int]]:
    """Return the answers and refusals of a provider by limit."""
    fixed = {limit: simulate(name, limit) for limit in FIXED}
    best = max(fixed, key=lambda limit: (fixed[limit][0], -limit))
    return {
        "none": simulate(name, math.inf),
        f"best fixed: {best}": fixed[best],
        "aimd": simulate(name, adaptive("aimd")),
        "gradient": simulate(name, adaptive("gradient")),
    }


def main() -> None:
    for name in PROVIDERS:
        for limit, (answered, refused) in compare(name).items():
            print(f"{name:7} {limit:15} {answered:5} answered {refused:5} refused")


if __name__ == "__main__":
    main()
