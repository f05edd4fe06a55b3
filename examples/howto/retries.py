"""What becomes of a durable job whose handler raises."""

import trio

from trio_lanes.durable import (
    DurableJobError,
    MemoryStore,
    NoRetry,
    Retry,
    RetryPolicy,
    current_job,
    open_durable_lanes,
)

POLICY = RetryPolicy(max_attempts=3, backoff=(1.0, 60.0), jitter=0)


async def main() -> None:
    began = trio.current_time()

    async def fetch(page: str) -> str:
        run = current_job()
        assert run is not None
        print(f"{trio.current_time() - began:3.0f} s: {page}, attempt {run.attempt}")
        if page == "no such page":
            raise NoRetry("404")  # failed at once: the next attempt would fail, too
        if page == "busy" and trio.current_time() - began < 30:
            raise Retry(30, counts=False)  # 429: the provider says when; no attempt is used up
        if page == "broken":
            raise ConnectionError("refused")
        return f"the text of {page}"

    async with open_durable_lanes(MemoryStore(), {"fetch": fetch}, retry=POLICY) as lanes:
        for page in ("broken", "no such page", "busy"):
            job = await lanes.submit("fetch", page)
            try:
                print(await job.wait())
            except DurableJobError as error:
                print(f"{type(error).__name__}: {error}")
        for dead in await lanes.dead():
            print(f"a dead letter: {dead.name} {dead.id}, attempt {dead.attempt}: {dead.error}")


if __name__ == "__main__":
    trio.run(main)
