"""A support bot over a store: two tools, a refund that a person approves, steering, budgets.

All that it has accepted is in the store, so after a crash or a deploy any process goes on with it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from trio_lanes import RateLimit
from trio_lanes.agents import (
    Conversation,
    ConversationTurn,
    DurableInbox,
    DurableTurn,
    Message,
    SharedRunRegistry,
    SharedTranscripts,
    inbox_handler,
)
from trio_lanes.durable import DurableLanes, MemoryStore, Store, open_durable_lanes

BUDGETS = {tenant: [RateLimit(10_000, per=60, unit="tokens")] for tenant in ("acme", "globex")}


async def ask_model(messages: Sequence[Message]) -> dict[str, Any]:
    """A fake: it looks up the order, asks for a refund, and answers the last message."""
    await trio.sleep(1)
    results = [message.content for message in messages if message.role == "tool"]
    if len(results) == 2:
        asked = [message.content for message in messages if message.role == "user"]
        return {"text": f"{results[-1]} (you wrote: {asked[-1]})"}
    name = ("look_up", "refund")[len(results)]
    return {"call": {"id": secrets.token_hex(4), "name": name, "order": 5}}


class Shop:
    """The service with the money: a second refund with the same key is the first one."""

    def __init__(self) -> None:
        self.refunds: dict[str, int] = {}

    async def refund(self, order: int, key: str) -> str:
        self.refunds.setdefault(key, order)
        await trio.sleep(1)  # the bot may die here: then it asks again
        return f"order {order} is refunded"


class SupportBot:
    """One process of the bot."""

    lanes: DurableLanes
    transcripts: SharedTranscripts

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    @asynccontextmanager
    async def run(self, store: Store) -> AsyncIterator[DurableLanes]:
        handlers = {"answer": inbox_handler(self.answer)}
        async with open_durable_lanes(store, handlers, quotas=BUDGETS, grace=5) as self.lanes:
            self.transcripts = SharedTranscripts(self.lanes)
            yield self.lanes

    async def answer(self, turn: DurableTurn) -> str:
        conversation = Conversation(turn.session, self.transcripts)
        for id in turn.rolls_back:  # the user has edited a message that was being answered
            await conversation.take_out(id)
        said = list(turn.checkpoint_data or [])  # by the model, also in former attempts
        if not await conversation.take_out(turn.id):
            return str(said[-1]["text"])  # a former attempt was complete
        async with conversation.turn(*turn.messages, id=turn.id) as exchange:
            step = 0
            while True:
                if step == len(said):
                    said.append(await self.ask(turn, exchange))
                    await turn.checkpoint(said)  # a person approves this call, not one like it
                if "text" in said[step]:
                    await exchange.finish(said[step]["text"])
                    return str(said[step]["text"])
                call = said[step]["call"]
                await exchange.call([call])
                await exchange.result(call["id"], await self.use(turn, call))
                if steers := await turn.take():
                    await exchange.steer(*steers)
                step += 1

    async def ask(self, turn: DurableTurn, exchange: ConversationTurn) -> dict[str, Any]:
        budget = self.lanes.quota(turn.session.split("-")[0])
        spent = await budget.spend(tokens=200)  # waits until the tenant has them
        reply = await ask_model(exchange.messages)
        await spent.settle(tokens=150)
        return reply

    async def use(self, turn: DurableTurn, call: dict[str, Any]) -> str:
        if call["name"] == "look_up":
            return f"order {call['order']} was delivered"
        decision = await turn.approve(call)
        if decision.value != "yes":
            return "a person has refused it"
        return await self.shop.refund(call["order"], key=f"{turn.session} {turn.id} {call['id']}")


async def main() -> None:
    store, shop = MemoryStore(), Shop()  # SqliteStore, PostgresStore or ValkeyStore for good
    async with open_durable_lanes(store, {}) as client:
        inbox, registry = DurableInbox(client, "acme-17", "answer"), SharedRunRegistry(client)
        async with SupportBot(shop).run(store.another()):
            question = await inbox.post("Refund order 5, please.")
            assert question.job is not None  # it was not refused
            _, event = await anext(question.job.events())
            print("a person is asked:", event["data"]["name"], event["data"]["order"])
            steer = await inbox.post("It was broken.")
        print("a deploy: the question stays open")
        async with SupportBot(shop).run(store.another()):
            while not await registry.submit("acme-17", {event["approve"]: "yes"}):  # noqa: ASYNC110
                await trio.sleep(1)  # until a process answers the question again
            print("answer:", (await question.settled()).result)
            print("the steer:", (await steer.settled()).kind)
        for message in await Conversation("acme-17", SharedTranscripts(client)).messages():
            print(f"{message.role}: {message.content or message.tool_calls[0]['name']}")
        print("refunds:", list(shop.refunds.values()))


if __name__ == "__main__":
    trio.run(main)
