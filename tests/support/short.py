"""`make test`: a part of the tests that touches every layer, in a few minutes.

It is for somebody who has nothing but Python, and for each change: no coverage, and nothing that
the dependency group `test` of pyproject.toml does not bring. What it leaves out is run by
`make test-all`, and named at the end, with the time of the processor that the tests took.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ELSEWHERE: Final = (
    "tests/durable/postgres",
    "tests/durable/test_kills.py",
    "tests/examples/asyncio_agents",
    "tests/examples/chat_agent",
    "tests/examples/gateway",
    "tests/examples/test_asyncio_applications.py",
    "tests/examples/test_first_hour_on_asyncio.py",
    "tests/examples/test_mcp_servers.py",
    "tests/examples/test_mcp_tools.py",
    "tests/examples/test_portal_in_flask.py",
    "tests/incidents/test_in_browser.py",
    "tests/incidents/test_store_in_browser.py",
    "tests/incidents/test_told.py",
    "tests/monitor/test_behind_proxies.py",
    "tests/monitor/test_browser.py",
    "tests/monitor/test_in_fastapi.py",
)
"""Files and folders that need more: a server, a browser, or packages of the group `test-all`."""

VALKEY: Final = "tests/durable/valkey"
OVER_VALKEY: Final = (f"{VALKEY}/test_conformance.py",)
"""The tests over a server from its wheel."""

NEEDED: Final = {"Valkey", "IPv6"}
"""What is used where it is here."""

MARKS: Final = {
    "thorough": "thorough ones",
    "real_processes": "of real processes",
    "slow": "slow ones",
}

_left_out: Final[Counter[str]] = Counter()
_seconds: Final[list[float]] = []


def _path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    path = _path(collection_path)
    is_file_of_valkey = path.startswith(f"{VALKEY}/test_") and path not in OVER_VALKEY
    return path in ELSEWHERE or is_file_of_valkey or None


def _why_not(item: pytest.Item) -> str | None:
    marks = {mark.name for mark in item.iter_markers()}
    if _path(item.path) in OVER_VALKEY:
        marks.discard("real_processes")
    needs = {mark.args[0] for mark in item.iter_markers("needs")} - NEEDED
    more = "that need " + ", ".join(sorted(needs)) if needs else None
    return next((why for mark, why in MARKS.items() if mark in marks), more)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = []
    for item in items:
        if why := _why_not(item):
            _left_out[why] += 1
        else:
            chosen.append(item)
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if _why_not(item)])
        items[:] = chosen


# ---- what is told at the end


def _user_seconds() -> float:
    took = os.times()
    return took.user + took.children_user


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:  # this process is a worker
        told["user seconds"] = _user_seconds()
        told["left out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {})
    _seconds.append(told.get("user seconds", 0.0))
    _left_out.update({why: n for why, n in told.get("left out", {}).items() if not _left_out[why]})


def _lines() -> Iterator[str]:
    numbers = ", ".join(f"{number} {why}" for why, number in _left_out.items())
    yield f"left to `make test-all`: {numbers or 'none of these tests'}, and all in"
    yield f"  {', '.join(ELSEWHERE)}, {VALKEY} (but {', '.join(OVER_VALKEY)})"
    # a worker is a child that may have been waited for: it is not to be counted twice
    own = os.times().user if _seconds else _user_seconds()
    yield f"{own + sum(_seconds):.0f} s of user CPU"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _lines():
        terminalreporter.write_line(line)
