"""From threads that Trio did not start: a future for each submission, in the thread's order."""

import threading

import trio

from trio_lanes import LanesClosedError, LanesPortal, open_lanes


async def answer(user: str, text: str) -> str:
    return f"{user}, you said {text!r}"


def serve(portal: LanesPortal) -> None:
    """A thread of a web server, say."""
    futures = [
        portal.submit(answer, "alice", text, session="alice", timeout=60)
        for text in ("hello", "are you there?")
    ]
    for future in futures:
        print(future.result(timeout=90))
    print(portal.run(answer, "bob", "hi", session="bob"))  # and wait for it


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        portal = lanes.portal()
        thread = threading.Thread(target=serve, args=[portal])
        thread.start()
        await trio.to_thread.run_sync(thread.join)
    try:
        portal.submit(answer, "alice", "anybody?")
    except LanesClosedError as error:
        print(error)


if __name__ == "__main__":
    trio.run(main)
