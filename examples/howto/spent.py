"""What a handler does when its budget is spent: its job comes again when the budget does."""

import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import BudgetSpentError, NoRetry, Retry, SqliteStore, open_durable_lanes

BUDGETS = {"tenant:*": RateLimit(10, per=0.3, unit="usd", algorithm="sliding")}


async def main() -> None:
    async def answer(request: dict[str, Any]) -> None:
        tenant = request["tenant"]
        try:
            await lanes.quota(tenant).spend(usd=request["usd"], wait=False)
        except BudgetSpentError as error:
            print(f"{tenant}: {error.left['usd']} of {request['usd']} usd left")
            if error.until is None:  # more than the budget of a day or a month
                raise NoRetry(str(error)) from None
            # 0.1: the clock of the store may be behind
            raise Retry(max(0.1, error.until - time.time()), counts=False) from None
        print(f"{tenant}: answered for {request['usd']} usd")

    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder, "jobs.db"))
        async with open_durable_lanes(store, {"answer": answer}, quotas=BUDGETS) as lanes:
            for usd in (6, 7):
                request = {"tenant": "tenant:acme", "usd": usd}
                job = await lanes.submit("answer", request, session="acme")
            await job.wait()


if __name__ == "__main__":
    trio.run(main)
