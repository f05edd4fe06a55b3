"""With CI=true half of what a test draws by chance is fixed, and half is fresh.

Fixed examples alone are the same for ever: what they do not find, CI never finds. Fresh ones alone
find something today, which nobody sees tomorrow. So there is a seed for each run, the same for all
workers, which the header names. A property test is played twice in one test, with half of its
examples each time, and first with the seed `FIXED`. Of the seeds of Trio's scheduler
(`many_seeds`), and of those that a test draws with (`seeds`), the second half is fresh, as far from
the others as the seed of the run says.

Elsewhere Hypothesis draws each time, and keeps what failed in its database. What it draws with a
seed depends on the number of examples: ``CI=true pytest --hypothesis-seed N`` plays what CI played
with ``N``. ``--scheduler-seed N`` plays its fresh orders elsewhere as ``seed0`` and so on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any, Final

import hypothesis
import hypothesis.core
import pytest

from tests.support.chaos import IN_CI

FIXED: Final = 0
SEED: Final = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)  # Hypothesis has read its option
def pytest_configure(config: pytest.Config) -> None:
    if IN_CI:
        of_controller = getattr(config, "workerinput", {}).get("fresh")
        given = config.getoption("--hypothesis-seed")
        drawn = random.SystemRandom().randrange(10_000, 1_000_000_000)
        config.stash[SEED] = int(given or of_controller or drawn)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist the seed."""
    if IN_CI:
        node.workerinput["fresh"] = node.config.stash[SEED]


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not IN_CI:
        return []
    seed = config.stash[SEED]
    return [
        f"fresh examples: --hypothesis-seed={seed}; fresh orders: --scheduler-seed={seed}",
    ]


def seeds(config: pytest.Config, number: int) -> dict[str, int]:
    """Return the seeds for a test that asks for so many, by the names that they have in its id."""
    fresh = number // 2 if IN_CI else 0
    found = {f"seed{name}": name for name in range(number - fresh)}
    return found | {f"fresh{name}": config.stash[SEED] + name for name in range(fresh)}


KEEP: Final = """\
This example is fresh: CI=true pytest --hypothesis-seed={seed} '{test}' plays it again.
Keep it: put @hypothesis.example(...) with its arguments above the test, or, where they are drawn
inside, write a test named for what went wrong, which plays what was drawn."""


@pytest.hookimpl(wrapper=True, trylast=True)  # inside of what makes a plain call of a Trio test
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    play: Callable[..., object] | None = getattr(item, "obj", None)
    if not IN_CI or play is None or not hypothesis.is_hypothesis_test(play):
        return (yield)
    given, seed = hypothesis.core.global_force_seed, item.config.stash[SEED]
    try:
        hypothesis.core.global_force_seed = FIXED
        item.runtest()
        hypothesis.core.global_force_seed = seed
        try:
            return (yield)
        except BaseException as error:
            error.add_note(KEEP.format(seed=seed, test=item.nodeid))
            raise
    finally:
        hypothesis.core.global_force_seed = given
