"""Valkey on virtual time, as the store of a cluster: each call is done at once, in Trio's thread.

The rules are the real script on a real server. Two commands of it are replaced: the time is Trio's,
and what the script publishes goes into a list, from which the stores get it after the call. So a
call and its effects take no time.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

import trio

from tests.durable.in_loop import Shared
from trio_lanes.durable import ValkeyStore
from trio_lanes.durable._valkey.link import ValkeyLink
from trio_lanes.durable._valkey.script import Script

from .clock import EPOCH, KEY, SCRIPT
from .server import Server, command, read_answer

CHANNELS = "test-channels"
PUSHED = "test-pushed"
_PUBLISH = "  return call('PUBLISH', ROOT .. 'to:' .. channel, text)\n"
_TELL = f"""\
  if call('SISMEMBER', '{CHANNELS}', channel) == 0 then
    return 0
  end
  call('RPUSH', '{PUSHED}', channel, text)
  return 1
"""
assert SCRIPT.text.count(_PUBLISH) == 1
_numbers = itertools.count(1)


class Life:
    """The namespaces and the time of simulated lives on one server.

    Attributes:
      script: the script that is called; the server has it.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.script = Script(SCRIPT.text.replace(_PUBLISH, _TELL))
        server.ask(*self.script.as_library.load)
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._answers = self._socket.makefile("rb")
        self._ahead = 0.0
        self._links: dict[str, ValkeyLink] = {}  # by channel

    def close(self) -> None:
        """Close the connection to the server."""
        self._answers.close()
        self._socket.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Shared]:
        """Make the data of a cluster."""
        namespace = f"life-{next(_numbers)}"
        self._ahead = 0.0

        def another() -> Any:
            return ValkeyStore(self._server.url, namespace=namespace, patience=60)

        def jump(seconds: float) -> None:
            self._ahead += seconds

        try:
            yield Shared(another, jump)
        finally:
            self._server.ask("FLUSHALL")

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Let stores do each call in Trio's thread, on this time."""
        life = self

        async def keep_connected(link: ValkeyLink, *, task_status: trio.TaskStatus[None]) -> None:
            life._links[link._channel] = link
            life._ask(["SADD", CHANNELS, link._channel])
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                del life._links[link._channel]
                life._ask(["SREM", CHANNELS, link._channel])

        async def pump(link: ValkeyLink) -> None:
            await trio.sleep_forever()

        async def call(link: ValkeyLink, verb: str, *arguments: str, weight: int = 1) -> list[Any]:
            await trio.lowlevel.checkpoint_if_cancelled()
            kind, *rest = life._call(link, verb, arguments)
            await trio.lowlevel.cancel_shielded_checkpoint()
            if kind != "done":
                raise link._gone(kind, rest)
            looks, news, _, answer = rest
            if looks:
                link._look()
            if news:
                link._note(news)
            assert isinstance(answer, list)
            return answer

        with (
            mock.patch.object(ValkeyLink, "keep_connected", keep_connected),
            mock.patch.object(ValkeyLink, "pump", pump),
            mock.patch.object(ValkeyLink, "call", call),
        ):
            yield

    def _ask(self, *commands: list[str | bytes | int]) -> list[Any]:
        self._socket.sendall(b"".join(command(*words) for words in commands))
        return [read_answer(self._answers) for _ in commands]

    def _call(self, link: ValkeyLink, verb: str, arguments: tuple[str, ...]) -> list[Any]:
        """Do an act, and tell the stores what the script has published."""
        micros = round((EPOCH + trio.current_time() + self._ahead) * 1e6)
        instance, *rules = link._header()
        act = [verb, len(arguments), *arguments]
        header = ["run", link._channel, instance, 0, "inf", *rules]
        *_, answer, pushed, _ = self._ask(
            ["HSET", KEY, "seconds", micros // 10**6, "micros", micros % 10**6],
            [*self.script.as_library.call, 1, f"{link._root}meta", *header, *act],
            ["LRANGE", PUSHED, 0, -1],
            ["DEL", PUSHED],
        )
        assert not isinstance(answer, Exception), answer
        for channel, text in zip(pushed[::2], pushed[1::2], strict=True):
            listener = self._links.get(channel)
            if listener is not None and text == "look":
                listener._look()
            elif listener is not None:
                listener._note(text)
        return list(answer)
