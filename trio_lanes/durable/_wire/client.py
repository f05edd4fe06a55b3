"""`ServedStoreClient`: a `Store` whose calls are done by the server of a store.

Theory of operation:

* A call is a message with a number, the incarnation of this instance, a name of `CALLS` and its
  arguments. Its answer is a message with the same number.
* A call without an answer is sent again, unchanged, after `ASK_AGAIN`, and as soon as a cut link is
  replaced, until the patience of the store is over. It then raises `StoreUnavailableError`, with
  ``unknown`` set if it was sent at all: also if the answer is that the store is not available,
  since an earlier copy of the call may have been done.
* Calls that read every job, and waits, are sent again over a new link only: they may take long.
  Their patience counts while there is no link.
* The server pushes a hint when there may be work. A hint can be lost, so `wake` also wakes by
  itself, every few seconds.
* The answer to a submission says whether the server will tell how its jobs end. Then a task that
  waits for one asks nothing, unless the link is cut, or nothing was told for `WAITED_FOR`.
* A call that changes the store ends even if its caller is cancelled, within the patience. A
  question and a wait for a job change nothing, and are cancelled at once.
* `ServedStoreClient.give_up` ends all calls: the process that serves the store has ended.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, NoReturn, Self, TypeVar, final

import trio

from .._contract.act import Act, Question
from .._contract.errors import StoreUnavailableError
from .._contract.protocol import ServedAt, Store
from .._contract.records import Ended, Finish, Opening, Step
from .._contract.waiter import Waiters
from .codec import decode, encode
from .link import CUT, Link
from .mail import Mail
from .run_past_cancel import run_past_cancel
from .server import NOT_YET, WAITED_FOR, verb_of

T = TypeVar("T")

logger: Final = logging.getLogger("trio_lanes.durable")

ASK_AGAIN: Final = 1.0
"""Seconds after which a call without an answer is sent again."""
RECONNECT_AFTER: Final = 0.25
"""Seconds between two tries to connect."""
LOOKS_EVERY: Final = (2.0, 5.0)
"""Seconds between two looks for work without a hint, at least and at most."""
LONG: Final = 600.0
"""Seconds after which a call that reads every job is given up, though there is a link."""

Connect = Callable[[], AbstractAsyncContextManager[Link]]


@final
class ServedStoreClient(Store):
    """The store of an instance whose store is in another process.

    Args:
      connect: makes a connection to the server; raises OSError if it cannot.
      name: what the store is called in errors and logs.
      patience: seconds after which a call without an answer raises `StoreUnavailableError`.
    """

    leased = True
    claims_last = True

    def __init__(self, connect: Connect, *, name: str, patience: float = 5.0) -> None:
        self.max_payload: int = 0  # the server says it
        self.patience = patience
        self._connect: Final = connect
        self._name: Final = name
        self._instance = ""
        self._mail: Mail | None = None
        self._linked = trio.Event()  # a link is there, or the store cannot be opened
        self._refused: Exception | None = None
        self._last_number = 0
        self._pending: Final[dict[int, _Call]] = {}
        self._waiters: Final = Waiters()
        self._poke, self._pokes = trio.open_memory_channel[None](1)

    def __repr__(self) -> str:
        return f"<store {self._name}>"

    # ---- the connection

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        linking = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_past_cancel, linking, self._keep_linked, opening)
            try:
                with trio.move_on_after(self.patience):
                    await self._linked.wait()
                if self._mail is not None:
                    # a shield comes too late for tasks inside that are being cancelled already
                    await trio.lowlevel.checkpoint_if_cancelled()
                    linking.shield = True
                    yield
            finally:
                linking.shield = False
                failed = self._refused
                if self._mail is None and failed is None:
                    failed = StoreUnavailableError(f"{self._name} has not answered")
                self._refuse(StoreUnavailableError(f"{self._name} is not open"))
                nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def give_up(self, why: str) -> None:
        """Let all calls raise `StoreUnavailableError`: the server does not come back."""
        error = StoreUnavailableError(f"{self._name} is gone: {why}")
        error.final = True
        self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Let all calls raise an error from now on."""
        if self._refused is None:
            self._refused = error
        self._mail = None
        self._linked.set()
        self._change_all()

    def _change_all(self) -> None:
        """Have all calls and waits look for a link again."""
        for call in self._pending.values():
            call.changed.set()
        self._waiters.all_changed()

    async def _doubt(self) -> None:
        """Have tasks that wait to be told the end of a job ask now and then: it may be lost."""
        while True:
            await trio.sleep(WAITED_FOR)
            self._waiters.all_changed()

    async def _keep_linked(self, opening: Opening) -> None:
        while True:
            try:
                async with self._connect() as link:
                    await self._use(link, opening)
            except (OSError, *CUT):
                pass
            self._mail = None
            if self._refused is not None:
                return
            self._linked = trio.Event()
            self._change_all()  # they wait for the next link
            await trio.sleep(RECONNECT_AFTER)

    async def _use(self, link: Link, opening: Opening) -> None:
        number = self._next_number()
        await link.send(encode(((number, opening),)))
        with trio.move_on_after(self.patience) as in_time:
            answer = None
            while answer is None:
                heard = {message[0]: message[1] for message in decode(await link.receive())}
                answer = heard.get(number)
        if in_time.cancelled_caught:
            return
        if isinstance(answer, Exception):
            self._refuse(answer)
            return
        assert isinstance(answer, int)
        self.max_payload = answer
        mail = Mail(link)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mail.send)
            nursery.start_soon(self._doubt)
            self._mail = mail
            self._linked.set()
            try:
                while True:
                    for message in decode(await link.receive()):
                        self._hear(*message)
            except CUT:
                nursery.cancel_scope.cancel()

    def _hear(self, number: int, answer: Any, *more: Any) -> None:
        if number == 0 and more:
            self._waiters.changed(answer, *more)
            return
        if number == 0:
            try:
                self._poke.send_nowait(None)
            except trio.WouldBlock:
                pass  # a hint is pending already
            return
        if more == (True,):
            self._waiters.accepted(answer)
        call = self._pending.pop(number, None)
        if call is not None:  # else the answer came twice, or too late
            call.answer = (answer,)
            call.changed.set()

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    # ---- calls

    def _call(self, name: str, arguments: tuple[Any, ...]) -> _Call:
        """Return a call, whose answer is heard of until the end of its block."""
        number = self._next_number()
        return _Call(self._pending, number, encode((number, self._instance, name, arguments)))

    async def _ask(self, name: str, *arguments: Any, long: bool = False) -> Any:
        """Make a call that changes the store, and return its answer."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._answer(name, arguments, long=long, shield=True)

    async def _answer(
        self, name: str, arguments: tuple[Any, ...], *, long: bool, shield: bool
    ) -> Any:
        with self._call(name, arguments) as call:
            if long:
                with trio.CancelScope(shield=shield) as scope:
                    await self._until_answered(call, scope)
            else:
                await self._within_patience(call, shield)
        if call.answer is None:
            verb = verb_of(name, arguments)
            error = StoreUnavailableError(f"{self._name} has not answered the call {verb!r}")
            error.unknown = call.sent
            raise error
        (answer,) = call.answer
        if isinstance(answer, StoreUnavailableError):
            # an earlier copy of the call, whose answer was lost, may have been done
            answer.unknown = True
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _ask_until(self, name: str, *arguments: Any) -> Any:
        """Make a call that waits, again and again until it has an answer.

        It changes nothing, or gives the same answer when it is asked again.
        """
        while True:
            with self._call(name, arguments) as call:
                with trio.move_on_after(WAITED_FOR + self.patience):
                    await self._until_answered(call)
            if call.answer is None:
                continue  # the question or its answer was lost
            (answer,) = call.answer
            if isinstance(answer, Exception):
                raise answer
            if answer != NOT_YET:
                return answer

    async def _within_patience(self, call: _Call, shield: bool) -> None:
        """Send a call until it has its answer, or the patience is over."""
        until = trio.current_time() + self.patience
        while call.answer is None and (now := trio.current_time()) < until:
            again, changed = until, self._linked
            if self._mail is not None or self._refused is not None:
                again, changed = min(until, now + ASK_AGAIN), self._send(call)
            with trio.CancelScope(deadline=again, shield=shield):
                await changed.wait()

    async def _until_answered(self, call: _Call, patience: trio.CancelScope | None = None) -> None:
        """Send a call until it has its answer, once over each link.

        Args:
          patience: cancelled when there is no link for the patience of the store, and after `LONG`.
        """
        last = trio.current_time() + LONG
        while call.answer is None:
            if self._mail is None and self._refused is None:
                if patience is not None:
                    patience.deadline = min(last, trio.current_time() + self.patience)
                await self._linked.wait()
                continue  # a new link may be cut before this task runs
            changed = self._send(call)
            if patience is not None:
                patience.deadline = last
            await changed.wait()

    def _send(self, call: _Call) -> trio.Event:
        """Send a call; return an event that is set when it has its answer, or the link is cut."""
        if self._mail is None:
            self._raise_refusal(call)
        call.changed = trio.Event()
        call.sent = True
        self._mail.post_text(call.text)
        return call.changed

    def _raise_refusal(self, call: _Call) -> NoReturn:
        refused = self._refused
        assert refused is not None
        if not isinstance(refused, StoreUnavailableError):
            raise refused
        error = StoreUnavailableError(*refused.args)
        error.final, error.unknown = refused.final, call.sent
        raise error

    async def do(self, act: Act[T], ticket: str) -> T:
        return await self._ask("do", act, ticket, long=act.long)  # type: ignore[no-any-return]

    async def look(self, question: Question[T]) -> T:
        answer = await self._answer("look", (question,), long=question.long, shield=False)
        return answer  # type: ignore[no-any-return]

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        return await self._ask("step", number, finished, room)  # type: ignore[no-any-return]

    async def join(
        self, ticket: str, lost: Sequence[tuple[int, int]] = (), held: Collection[int] = ()
    ) -> None:
        await self._ask("join", ticket, lost, tuple(held))
        self._instance = ticket

    async def leave(self) -> None:
        await self._ask("leave")

    async def declare_dead(self, instance: str) -> None:
        await self._ask("declare_dead", instance)

    async def beat(self) -> bool:
        return await self._ask("beat")  # type: ignore[no-any-return]

    async def wake(self) -> AsyncIterator[None]:
        while True:
            with trio.move_on_after(random.uniform(*LOOKS_EVERY)):
                await self._pokes.receive()
            yield

    async def wait(self, id: int) -> Ended | None:
        return await self._waiters.end_of(id, partial(self._ask_end, id))

    async def _ask_end(self, id: int) -> tuple[Ended | None]:
        return (await self._ask_until("wait", id),)

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        return await self._ask_until("events", id, after)  # type: ignore[no-any-return]

    async def sent(self, id: int, number: int) -> bool:
        return await self._ask_until("sent", id, number)  # type: ignore[no-any-return]

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        return await self._ask_until("receive", id, fence, after)  # type: ignore[no-any-return]

    async def served(self, request: int) -> ServedAt | None:
        return await self._ask_until("served", request)  # type: ignore[no-any-return]


@final
class _Call:
    """A call that has no answer yet."""

    def __init__(self, pending: dict[int, _Call], number: int, text: str) -> None:
        self._pending: Final = pending
        self._number: Final = number
        self.text: Final = text
        self.sent = False
        self.answer: tuple[Any] | None = None
        self.changed = trio.Event()  # it has its answer, or the link is cut

    def __enter__(self) -> Self:
        self._pending[self._number] = self
        return self

    def __exit__(self, *_: object) -> None:
        self._pending.pop(self._number, None)
