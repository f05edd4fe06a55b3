"""What many tests look at: what becomes of jobs, and how often a run wakes up."""

from __future__ import annotations

from typing import Any

import trio
from trio.lowlevel import Task


class Track:
    """Whose bodies started and ended, in which order and when, and how many ran at once."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ended: list[Any] = []  # by returning
        self.start_times: dict[Any, float] = {}
        self.end_times: dict[Any, float] = {}
        self.running = 0
        self.peak = 0

    async def sleep(self, label: Any, seconds: float = 1.0) -> Any:
        """A body that takes that long, and returns ``label``."""
        self.started.append(label)
        self.start_times[label] = trio.current_time()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await trio.sleep(seconds)
        finally:
            self.running -= 1
        self.ended.append(label)
        self.end_times[label] = trio.current_time()
        return label

    async def hold(self, label: Any, gate: trio.Event) -> Any:
        """A body that ends when the gate is opened, and returns ``label``."""
        self.started.append(label)
        self.start_times[label] = trio.current_time()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await gate.wait()
        finally:
            self.running -= 1
        self.ended.append(label)
        self.end_times[label] = trio.current_time()
        return label


class Steps(trio.abc.Instrument):
    """Counts the steps that tasks of this run take inside a ``with`` block."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: Task) -> None:
        self.count += 1

    def __enter__(self) -> Steps:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *exc: object) -> None:
        trio.lowlevel.remove_instrument(self)
