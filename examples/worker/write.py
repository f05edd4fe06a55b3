"""Submits letters from another process, a web server, say: it makes no difference who works."""

import os

import trio

from trio_lanes.durable import SqliteStore, open_durable_lanes

LETTERS = [("alice", "Welcome!"), ("bob", "Welcome!"), ("alice", "Your invoice is attached.")]


async def main() -> None:
    store = SqliteStore(os.environ.get("LETTERS", "letters.db"))
    async with open_durable_lanes(store, {}, {"main": 4}, worker=False) as lanes:
        for number, (to, text) in enumerate(LETTERS):
            await lanes.submit(
                "letter", {"to": to, "text": text}, session=to, key=f"welcome/{number}"
            )


if __name__ == "__main__":
    trio.run(main)
