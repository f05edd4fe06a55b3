"""The clock of a test that is the time of the server's stores, too."""

from __future__ import annotations

import socket
from typing import Any

import trio
import trio.testing

from trio_lanes.durable import ValkeyStore
from trio_lanes.durable._valkey.script import Script, source

from .server import Server, command, read_answer

EPOCH = 1_800_000_000
"""The time of the stores at the beginning of a test."""
KEY = "test-clock"

_REAL = "call('TIME')"
_TESTS = f"call('HMGET', '{KEY}', 'seconds', 'micros')"


_BOUND = "number_of(MAX_TIME)"
assert source().count(_REAL) == source().count(_BOUND) == 1


def on_time_of_tests(text: str, *, bounded: bool = False) -> Script:
    """Return a script whose time is that of the test, though it jumps while a call is under way."""
    return Script(text.replace(_REAL, _TESTS).replace(_BOUND, _BOUND if bounded else "huge"))


SCRIPT = on_time_of_tests(source())
BOUNDED = on_time_of_tests(source(), bounded=True)
"""The same, but a server's clock that goes on by more than the caller's was set."""


def on_test_time(store: ValkeyStore) -> ValkeyStore:
    """Let the time of a store be that of the test."""
    store._script = SCRIPT
    return store


class StoreClock(trio.abc.Clock):
    """Virtual time, for Trio and for the stores of one server."""

    def __init__(self, server: Server) -> None:
        self._mock = trio.testing.MockClock()
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._answers = self._socket.makefile("rb")
        self._passed = self._ahead = 0.0
        self._set()

    def _ask(self, *words: str | int) -> Any:
        self._socket.sendall(command(*words))
        return read_answer(self._answers)

    def _set(self) -> None:
        micros = round((EPOCH + self._passed + self._ahead) * 1e6)
        self._ask("HSET", KEY, "seconds", micros // 10**6, "micros", micros % 10**6)

    def start_clock(self) -> None:
        self._mock.start_clock()

    def current_time(self) -> float:
        return self._mock.current_time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return self._mock.deadline_to_sleep_time(deadline)

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._mock.jump(seconds)
        self._passed += seconds
        self._set()

    def set_clock(self, ahead: float) -> None:
        """Set the clock of the server so many seconds ahead of Trio's."""
        self._ahead = ahead
        self._set()

    def close(self) -> None:
        """Close the connection to the server."""
        self._answers.close()
        self._socket.close()
