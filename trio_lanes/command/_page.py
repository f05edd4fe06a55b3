"""The commands ``why`` and ``health`` for an application that serves a monitor, at its URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from ._answer import Answer
from ._ask import verdict, why_lines
from ._exits import DONE, NO, STORE_UNAVAILABLE, CommandError, one_line
from ._top import BusyError, check_answer, check_url, follow, page_client, until_whole


async def health(url: str, headers: Mapping[str, str]) -> Answer:
    """Show what is wrong with the lanes of a page, and with its store."""
    frames: list[Any] = []
    frames_url = check_url(url)
    async with page_client(url, headers) as client:
        await follow(client, frames_url, until_whole(frames))
    said = frames[-1]
    return verdict(said["health"], said["left_out"], unseen=said["unseen"], looked=said["looked"])


async def why(url: str, headers: Mapping[str, str], ids: Sequence[int]) -> Answer:
    """Show why jobs of a page, or of its store, do not go on."""
    check_url(url)
    lines, found = [], []
    async with page_client(url, headers) as client:
        for id in ids:
            story = await _get(client, url, f"job/{id}") or await _get(client, url, f"durable/{id}")
            found.append(story)
            if story is None:
                lines.append(f"the page does not know job {id}")
            else:
                lines += why_lines(id, story["state"], story["roots"])
    return Answer(found, lines, NO if None in found else DONE)


async def _get(client: httpx2.AsyncClient, url: str, path: str) -> Any:
    """Return what the page answers; None: it knows no such job, or has no store."""
    where = check_url(url).removesuffix("frames") + path
    try:
        answer = await client.get(where)
        await check_answer(answer)
        return answer.json()
    except (httpx2.HTTPError, BusyError, ValueError) as error:
        raise CommandError(f"{where}: {one_line(error)}", STORE_UNAVAILABLE) from error
