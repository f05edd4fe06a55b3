"""An application for ``trio-lanes worker``: letters that go out in order, for each customer."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from trio_lanes.durable import DurableLanes, SqliteStore, current_job, open_durable_lanes

STORE = os.environ.get("LETTERS", "letters.db")


class Post:
    """Stands for what handlers need for as long as the lanes are open: a connection, a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __aenter__(self) -> "Post":
        await trio.Path(self.folder).mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await trio.lowlevel.checkpoint()

    async def send(self, letter: dict[str, Any]) -> str:
        """Under the number of its job, so that a second attempt writes the same file again."""
        job = current_job()
        assert job is not None
        path = self.folder / f"{job.id}.txt"
        await trio.Path(path).write_text(f"Dear {letter['to']},\n{letter['text']}\n")
        return str(path)


@asynccontextmanager
async def lanes() -> AsyncIterator[DurableLanes]:
    async with (
        Post(Path(STORE).with_suffix(".letters")) as post,
        open_durable_lanes(SqliteStore(STORE), {"letter": post.send}, {"main": 4}) as lanes,
    ):
        yield lanes


def limits() -> dict[str, int]:
    """For ``--reload``: what SIGHUP has the worker read anew."""
    return {"main": int(Path(STORE).with_suffix(".limit").read_text())}
