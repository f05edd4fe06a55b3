"""Blocking code in a job: a thread, which the slot is held for, and which may call back."""

from contextvars import ContextVar

import trio

from trio_lanes import current_job, open_lanes

user: ContextVar[str] = ContextVar("user")


def render(pages: int) -> str:
    """Blocks; it knows nothing of lanes."""
    for page in range(1, pages + 1):
        trio.from_thread.check_cancelled()  # where cancelling the job ends it
        trio.from_thread.run_sync(tell, page)  # in the job's own task
    return f"{pages} pages for {user.get()}"  # its thread has a copy of the job's context


def tell(page: int) -> None:
    job = current_job()
    assert job is not None
    job.progress()  # so that idle_timeout counts from now
    print(job.name, "is at page", page)


async def report(name: str, pages: int) -> str:
    user.set(name)
    return await trio.to_thread.run_sync(render, pages)


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        print(await lanes.run(report, "alice", 3, session="alice", idle_timeout=30))


if __name__ == "__main__":
    trio.run(main)
