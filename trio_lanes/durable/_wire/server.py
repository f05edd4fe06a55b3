"""`serve`: does the calls that come over one link, on a store object of the server's process.

Each connection has a store object of its own, over the same data, which is opened with the
`Opening` that the first message brings. Each call names the incarnation that makes it, and is done
in a task of its own, or in none, if the store can begin it. So calls may overtake each other. A
call that comes late or twice is known by its number or its ticket. Messages go in batches: see
`mail`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, final

import trio
from outcome import Error, Outcome

from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
from .._contract.records import Ended
from ..acts.jobs import Enqueue
from .codec import decode, encode, is_answer
from .link import CUT, Link
from .mail import Mail

logger: Final = logging.getLogger("trio_lanes.durable")

WAITED_FOR: Final = 20.0
"""Seconds after which a wait for a job is answered, so that it is asked again."""
TOLD_SIZE: Final = 16 * 1024
"""How many characters the outcome of a job has, at most, of which a client is told unasked."""
NOT_YET: Final = "not yet"
"""The answer to a wait for a job that has not ended."""
WAITS: Final = frozenset({"wait", "events", "sent", "receive", "served"})
CALLS: Final = WAITS | {"join", "leave", "declare_dead", "beat", "do", "look", "step"}
"""The calls that a message can ask for; their arguments are records that the codec knows."""


class ServedStore(Store, Protocol):
    """A store object that a server opens for one connection."""

    instance: str
    """The incarnation that makes the next call."""

    def begin(
        self, name: str, arguments: tuple[Any, ...], tell: Callable[[Outcome[Any]], None]
    ) -> bool:
        """Begin a call, and have a function called with its outcome, so that no task need wait.

        Return whether it has begun. A store without this method has a task for each call.
        """

    def hear_end(self, id: int, hear: Callable[[Ended | None], None]) -> bool:
        """Have a function called once when a job ends that is known not to have ended; else False.

        It is called with None when that is not known any more. Only a store with `begin` has it.
        """


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
                                # else the opening came twice
                                if len(call) == 4 and not self._begin(*call):
                                    nursery.start_soon(self._do, *call)
                    except CUT:
                        nursery.cancel_scope.cancel()
        except Exception as error:
            await self._link.send(encode(((number, _answer_for(error, "open")),)))

    async def _push_looks(self) -> None:
        async for _ in self._store.wake():
            self._mail.post((0, "look"))

    def _begin(self, number: int, me: str, name: str, arguments: tuple[Any, ...]) -> bool:
        """Begin a call for which no task need wait; return whether it was such a call."""
        begin = getattr(self._store, "begin", None)
        if begin is None:
            return False
        self._store.instance = me

        def tell(outcome: Outcome[Any]) -> None:
            if isinstance(outcome, Error):
                self._refuse(number, outcome.error, name, arguments)
            elif name == "do" and isinstance(arguments[0], Enqueue):
                ids = outcome.unwrap()
                told = all(self._store.hear_end(id, partial(self._tell_end, id)) for id in ids)
                self._mail.post((number, ids, told))
            else:
                self._mail.post((number, outcome.unwrap()))

        try:
            begun: bool = begin(name, arguments, tell)
        except Exception as error:
            self._refuse(number, error, name, arguments)
            return True
        return begun

    def _tell_end(self, id: int, how: Ended | None) -> None:
        if how is not None and len(how.outcome) > TOLD_SIZE:
            how = None  # who waits for it asks
        self._mail.post((0, id, how))

    async def _do(self, number: int, me: str, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            assert name in CALLS, name
            self._store.instance = me  # a call reads it before it waits for anything
            call = getattr(self._store, name)
            answer: Any = NOT_YET
            with trio.move_on_after(WAITED_FOR if name in WAITS else math.inf):
                answer = await call(*arguments)
        except Exception as error:
            self._refuse(number, error, name, arguments)
        else:
            self._mail.post((number, answer))

    def _refuse(
        self, number: int, error: BaseException, name: str, arguments: tuple[Any, ...]
    ) -> None:
        self._mail.post((number, _answer_for(error, verb_of(name, arguments))))


def verb_of(call: str, arguments: Sequence[Any]) -> str:
    """Return what a call asks for, in one word."""
    return str(arguments[0].name) if call in ("do", "look") else call


def _answer_for(error: BaseException, verb: str) -> Exception:
    """Return the answer to a call that raised an error."""
    if isinstance(error, Exception) and is_answer(error):
        return error
    logger.error("the call %r to the store failed", verb, exc_info=error)
    failed = StoreUnavailableError(f"the server of the store failed: {error!r}")
    failed.unknown = True
    return failed
