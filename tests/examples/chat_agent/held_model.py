"""A model whose answers stop in the middle until a test lets them on; also for other processes."""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from examples.chat_agent.model import Event, Message, Model, ToolCall
from examples.chat_agent.openai_server import Endpoint, serve


class HeldModel:
    """Answers each message with two words, and between the two waits until it is let on."""

    name = "held"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._was_asked: defaultdict[str, trio.Event] = defaultdict(trio.Event)
        self._let_on: defaultdict[str, trio.Event] = defaultdict(trio.Event)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        last = messages[-1]

        async def events() -> AsyncIterator[Event]:
            if last.role == "tool":
                yield f"it says: {last.text}"
                return
            if last.text.startswith("mail"):
                yield ToolCall("call", "send_mail", '{"message": "bob: hi"}')
                return
            self.asked.append(last.text)
            self._was_asked[last.text].set()
            yield f"begun {last.text} "
            await self._let_on[last.text].wait()
            yield f"ended {last.text}"

        yield events()

    async def until_asked(self, text: str) -> None:
        """Wait until this message is being answered."""
        await self._was_asked[text].wait()

    def let_on(self, *texts: str) -> None:
        """Let the answers to these messages go on, now or when they have come so far."""
        for text in texts:
            self._let_on[text].set()


@asynccontextmanager
async def open_endpoint_of(model: Model, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Have the processes that are started meanwhile ask this model, which stays in this one."""
    async with trio.open_nursery() as nursery:
        monkeypatch.setenv("OPENAI_BASE_URL", await nursery.start(serve, Endpoint(model)))
        monkeypatch.setenv("OPENAI_MODEL", model.name)
        try:
            yield
        finally:
            monkeypatch.delenv("OPENAI_BASE_URL")
            nursery.cancel_scope.cancel()
