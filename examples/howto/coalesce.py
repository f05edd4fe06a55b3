"""An index that is built once after a hundred edits, one sync for each customer, and who types."""

import trio

from trio_lanes import Coalesce, open_lanes

start = 0.0  # when `main` began


def say(what: str) -> None:
    print(f"{trio.current_time() - start:4.1f} s: {what}")


async def build_index(edit: int) -> str:
    say(f"index with edit {edit}")
    await trio.sleep(5)
    return f"index {edit}"


async def sync(customer: str) -> None:
    say(f"sync of {customer}")
    await trio.sleep(3)


async def show_typing(who: str) -> None:
    say(f"{who} is typing")


async def main() -> None:
    global start
    start = trio.current_time()
    async with open_lanes({"main": 4}) as lanes:
        # After a second without an edit; after ten seconds at the latest.
        quiet = Coalesce("index", debounce=1, max_wait=10)
        for edit in range(100):
            job = lanes.submit_nowait(build_index, edit, coalesce=quiet)
            await trio.sleep(0.02)
        print(await job.wait(), "for", job.submissions, "submissions")

        # Each webhook asks for a sync. One runs, one waits: it will see what came meanwhile.
        for _ in range(5):
            for customer in ("acme", "bolt"):
                only = Coalesce(("sync", customer))
                lanes.start_soon(sync, customer, session=customer, coalesce=only)
                await trio.sleep(0.25)
        await lanes.wait_idle()

        # At most once in two seconds, however fast somebody types.
        typing = Coalesce(("typing", "alice"), debounce=2, max_wait=2)
        for _ in range(12):
            lanes.start_soon(show_typing, "alice", coalesce=typing)
            await trio.sleep(0.3)


if __name__ == "__main__":
    trio.run(main)
