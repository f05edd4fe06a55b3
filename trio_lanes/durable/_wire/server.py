"""`serve`: does the calls that come over one link, on a store object of the server's process.

Each connection has a store object of its own, over the same data, which is opened with the
`Opening` that the first message brings. Each call names the incarnation that makes it, and is done
in a task of its own. So calls may overtake each other. A call that comes late or twice is known by
its number or its ticket. Messages go in batches: see `mail`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Final, Protocol, final

import trio

from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
from .codec import decode, encode, is_answer
from .link import CUT, Link
from .mail import Mail

logger: Final = logging.getLogger("trio_lanes.durable")

WAITED_FOR: Final = 20.0
"""Seconds after which a wait for a job is answered, so that it is asked again."""
NOT_YET: Final = "not yet"
"""The answer to a wait for a job that has not ended."""
WAITS: Final = frozenset({"wait", "events", "sent", "receive", "served"})
CALLS: Final = WAITS | {"join", "leave", "declare_dead", "beat", "do", "look", "step"}
"""The calls that a message can ask for; their arguments are records that the codec knows."""


class ServedStore(Store, Protocol):
    """A store object that a server opens for one connection."""

    instance: str
    """The incarnation that makes the next call."""


async def serve(link: Link, store: ServedStore) -> None:
    """Do the calls that come over ``link`` until it is cut, on a store object that is not open."""
    await _ServedLink(link, store).serve()


@final
class _ServedLink:
    def __init__(self, link: Link, store: ServedStore) -> None:
        self._link: Final = link
        self._mail: Final = Mail(link)
        self._store: Final = store

    async def serve(self) -> None:
        try:
            first, *_ = decode(await self._link.receive())
            if len(first) == 2:  # else the opening was lost
                await self._open(*first)
        except CUT:
            pass  # the client comes again, over another connection

    async def _open(self, number: int, opening: Any) -> None:
        try:
            async with self._store.open(opening):
                self._mail.post((number, self._store.max_payload))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._mail.send)
                    nursery.start_soon(self._push_looks)
                    try:
                        while True:
                            for call in decode(await self._link.receive()):
                                if len(call) == 4:  # else the opening came twice
                                    nursery.start_soon(self._do, *call)
                    except CUT:
                        nursery.cancel_scope.cancel()
        except Exception as error:
            await self._link.send(encode(((number, _answer_for(error, "open")),)))

    async def _push_looks(self) -> None:
        async for _ in self._store.wake():
            self._mail.post((0, "look"))

    async def _do(self, number: int, me: str, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            assert name in CALLS, name
            self._store.instance = me  # a call reads it before it waits for anything
            call = getattr(self._store, name)
            answer: Any = NOT_YET
            with trio.move_on_after(WAITED_FOR if name in WAITS else math.inf):
                answer = await call(*arguments)
        except Exception as error:
            answer = _answer_for(error, verb_of(name, arguments))
        self._mail.post((number, answer))


def verb_of(call: str, arguments: Sequence[Any]) -> str:
    """Return what a call asks for, in one word."""
    return str(arguments[0].name) if call in ("do", "look") else call


def _answer_for(error: Exception, verb: str) -> Exception:
    """Return the answer to a call that raised an error."""
    if is_answer(error):
        return error
    logger.error("the call %r to the store failed", verb, exc_info=error)
    failed = StoreUnavailableError(f"the server of the store failed: {error!r}")
    failed.unknown = True
    return failed
