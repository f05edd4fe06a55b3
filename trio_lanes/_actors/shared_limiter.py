"""Requests for tokens of a limiter that the application shares with other code.

A lane with such a limiter asks as any client of a `trio.CapacityLimiter` does. While its head lacks
only a token, one task of the lane is parked in ``acquire_on_behalf_of(head)``; never more than one.
When the token comes and that head may not start any more, the token goes back, and the lane asks
again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, final

import trio
from trio.lowlevel import enable_ki_protection

from .job import AnyJob


@final
class SharedTokenRequest:
    """Takes tokens of a shared limiter for the jobs of one lane."""

    def __init__(
        self,
        limiter: trio.CapacityLimiter,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        after_act: Callable[[Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._limiter: Final = limiter
        self._spawn: Final = spawn
        self._after_act: Final = after_act  # calls a function that may run code of others
        self._changed: Final = changed  # a batch: a token is here, or went back unused
        self._wanted: AnyJob | None = None  # the head that lacks only a token
        self._held: AnyJob | None = None  # the job on whose behalf a token came, until it is used
        self._asking = False  # whether the task exists
        self._scope: trio.CancelScope | None = None  # the scope in which the task is parked

    def take(self, job: AnyJob) -> bool:
        """Take a token for ``job``, which lacks nothing else; return whether there was a token.

        If there was none, the lane asks for one.
        """
        if self._held is job and self.has_token_for(job):
            self._held = None
            return True
        self.give_back()
        try:
            self._limiter.acquire_on_behalf_of_nowait(job)
        except (trio.WouldBlock, RuntimeError):
            # A RuntimeError: the job holds a token already, which came in this tick. The task that
            # asked for it has yet to run, and will report it.
            self.ask_for(job)
            return False
        self._wanted = None
        return True

    def ask_for(self, job: AnyJob) -> None:
        """Ask for a token for ``job``, which lacks nothing else."""
        self._wanted = job
        if not self._asking:
            self._asking = True
            self._spawn(self._ask)

    def has_token_for(self, job: AnyJob) -> bool:
        """Whether there is a token that ``job`` can take now."""
        if self._held is job:
            return self._limiter.available_tokens >= 0  # it may be narrower by now
        return self._limiter.available_tokens >= 1

    def give_back(self) -> None:
        """Give a token back that came and was not used."""
        held, self._held = self._held, None
        if held is not None:
            self._limiter.release_on_behalf_of(held)

    def rest(self) -> None:
        """Ask for no token: no head lacks only a token."""
        self._wanted = None
        self.give_back()
        if self._scope is not None:
            self._after_act(self._scope.cancel)

    @enable_ki_protection
    async def _ask(self) -> None:
        try:
            while self._wanted is not None:
                head = self._wanted
                # Shielded, since a job that lent its slot needs a slot to clean up with, also when
                # the lanes are cancelled; `rest` ends it as soon as no job wants a token.
                with trio.CancelScope(shield=True) as self._scope:
                    try:
                        await self._limiter.acquire_on_behalf_of(head)
                    except RuntimeError:
                        # The lane has had another limiter meanwhile, and its former request to this
                        # limiter has yet to give back a token that came in this tick.
                        await trio.lowlevel.checkpoint()
                    else:
                        # A token that comes in the tick of a cancellation is here all the same.
                        self._held = head
                self._scope = None
                if self._held is not None:
                    self._wanted = None
                    self._changed()
                    if self._held is not None:
                        self.give_back()
                        self._changed()  # the head waits for something else than a token by now
        finally:
            self._asking = False
            self._scope = None
