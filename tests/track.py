"""A body for jobs that writes down what becomes of it: what many tests look at."""

from __future__ import annotations

from typing import Any

import trio


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
