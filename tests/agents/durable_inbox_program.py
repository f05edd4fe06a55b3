"""A process with a durable inbox over a SQLite file: it posts messages, and handles their turns.

``python durable_inbox_program.py FOLDER post`` posts four messages, and stops in the turn of the
second and third. ``... FOLDER goes-on`` waits until all messages have been handled. The transcript
is a file with a line for each message.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import trio

from trio_lanes.agents import DurableInbox, DurableTurn, WhenBusy, inbox_handler
from trio_lanes.durable import SqliteStore, open_durable_lanes

MODES = (WhenBusy.FOLLOWUP, WhenBusy.COLLECT, WhenBusy.COLLECT, WhenBusy.STEER)


async def main(folder: Path, what: str) -> None:
    transcript = folder / "transcript.txt"

    def write(id: str) -> None:
        text = transcript.read_text() if transcript.exists() else ""
        if f"{id}\n" not in text:
            transcript.write_text(f"{text}{id}\n")

    async def answer(turn: DurableTurn) -> str:
        for id in turn.ids:
            write(id)
        if turn.ids == ["0"]:
            await all_posted.wait()
        else:
            taken = await turn.take()
            for id, _ in turn.steers:
                write(id)
            print(f"turn of {turn.ids} took {taken}", flush=True)
            if what == "post":
                await trio.sleep_forever()
        return "done"

    all_posted = trio.Event()
    store = SqliteStore(folder / "jobs.db")
    async with open_durable_lanes(store, {"answer": inbox_handler(answer)}) as lanes:
        inbox = DurableInbox(lanes, "alice", "answer", debounce=0.0, cap=math.inf)
        # posted again by the second process: the ids make each of them one message
        receipts = [
            await inbox.post(f"text {n}", id=f"{n}", when_busy=mode) for n, mode in enumerate(MODES)
        ]
        all_posted.set()
        kinds = [str((await receipt.settled()).kind) for receipt in receipts]
        print(f"settled {kinds}", flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
