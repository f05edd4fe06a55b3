"""A durable inbox: messages that wait in a store, and a turn that is attempted again."""

from __future__ import annotations

import trio

from trio_lanes.agents import DurableInbox, DurableTurn, WhenBusy, inbox_handler
from trio_lanes.durable import MemoryStore, RetryPolicy, open_durable_lanes

transcript: dict[str, str] = {}  # {id of a message: its text}; a real one is in a database


async def answer(turn: DurableTurn) -> str:
    for id, text in zip(turn.ids, turn.messages, strict=True):
        transcript.setdefault(id, text)  # a later attempt finds it there
    await trio.sleep(1)  # a model thinks
    await turn.take()
    for id, text in turn.steers:
        transcript.setdefault(id, f"{text} (steer)")
    if turn.run.attempt == 1 and "two" in turn.messages:
        raise ConnectionError("the model is away")
    return f"answer to {' + '.join(turn.messages)}"


async def main() -> None:
    store = MemoryStore()  # SqliteStore("jobs.db") or PostgresStore(...) keep them for good
    retry = RetryPolicy(backoff=(0.1, 1.0))
    handlers = {"answer": inbox_handler(answer)}
    async with open_durable_lanes(store, handlers, retry=retry) as lanes:
        inbox = DurableInbox(lanes, "alice", "answer", debounce=0.2)
        receipts = {"one": await inbox.post("one")}
        for text, mode in (
            ("go on", WhenBusy.STEER),
            ("two", WhenBusy.COLLECT),
            ("three", WhenBusy.COLLECT),
        ):
            receipts[text] = await inbox.post(text, when_busy=mode)
        for text, receipt in receipts.items():
            settled = await receipt.settled()
            print(f"{text}: {settled.kind} {settled.result or ''}".rstrip())
    print(", ".join(transcript.values()))


if __name__ == "__main__":
    trio.run(main)
