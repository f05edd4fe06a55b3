"""Work that survives the process, with effects that are done once."""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import trio

from trio_lanes.durable import RetryPolicy, SqliteStore, current_job, open_durable_lanes


class Outbox:
    """Where the answers go. Each is kept under the number of the job that it answers."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS answers (job INTEGER PRIMARY KEY, fence, text)"
        )

    def close(self) -> None:
        self._db.close()

    def find(self, job: int) -> str | None:
        row = self._db.execute("SELECT text FROM answers WHERE job = ?", [job]).fetchone()
        return None if row is None else str(row[0])

    def put(self, job: int, fence: int, text: str) -> None:
        """Keep it; but never what a run says that has been overtaken by a later one."""
        self._db.execute(
            "INSERT INTO answers VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
            " SET fence = excluded.fence, text = excluded.text WHERE fence <= excluded.fence",
            [job, fence, text],
        )

    def texts(self) -> list[str]:
        return [text for (text,) in self._db.execute("SELECT text FROM answers ORDER BY job")]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        outbox = Outbox(Path(folder, "outbox.db"))

        async def answer(message: dict[str, Any]) -> str:
            run = current_job()
            assert run is not None
            text = outbox.find(run.id)
            if text is not None:  # an earlier attempt came that far
                print(f"attempt {run.attempt} finds the answer to {message['text']!r}")
                return text
            text = f"{message['text']}, {message['name']}!"
            outbox.put(run.id, run.fence, text)
            if message["text"] == "Bye":
                raise ConnectionError("gone after the effect, as a crash would be")
            return text

        store = SqliteStore(Path(folder, "jobs.db"))
        retry = RetryPolicy(max_attempts=3, backoff=(0.01, 1.0))
        async with open_durable_lanes(store, {"answer": answer}, retry=retry) as lanes:
            for number, text in enumerate(["Hello", "Bye"]):
                message = {"name": "alice", "text": text}
                job = await lanes.submit("answer", message, session="alice", key=f"msg-{number}")
            print(await job.wait())
            again = await lanes.submit("answer", message, session="alice", key="msg-1")
            print("the same job:", again.id == job.id)
        print(outbox.texts())
        outbox.close()


if __name__ == "__main__":
    trio.run(main)
