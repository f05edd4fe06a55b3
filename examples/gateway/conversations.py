"""`/v1/conversations`: what clients write into conversations, beside the turns.

A client's items are an exchange without an answer. Metadata is kept in the same way, and so is what
was deleted: neither clients nor the model see it after that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import Conversation

from ..openai_api.errors import BadInputError, Refused
from ..openai_api.fields import CONVERSATION, CONVERSATIONS, ITEMS, checked
from ..openai_api.http import body_of, listed, named, page_of
from ..openai_api.items import asked_in, numbered, shown, to_items, to_messages
from ..openai_api.once import key_of
from ..openai_api.wire import Json
from .engine import Engine


async def write(engine: Engine, request: Request, session: str, **content: Any) -> Json:
    """Write into a conversation, at most once for each key; return what it has of the request."""
    key = key_of(request)
    content = {"input": [], **content}
    if key.given:
        content |= {"once": key.id, "body": key.body}
        for kept in asked_in(await engine.messages(session)):
            if kept.get("once") == key.id:
                key.check(kept["body"])
                return kept
    draft = Conversation("draft")
    async with draft.turn(content) as exchange:
        await exchange.finish()
    await Conversation(session, engine.store).merge(draft)  # one commit: whole, or not there
    return content


def conversation_object(id: str, contents: Sequence[Json]) -> Json:
    """Return a conversation, whose questions have these contents."""
    created = [content["created_at"] for content in contents if "created_at" in content]
    metadata = [content["metadata"] for content in contents if "metadata" in content]
    since = created[0] if created else int(time.time())
    newest = metadata[-1] if metadata else {}
    return {"id": id, "object": "conversation", "created_at": since, "metadata": newest}


class Conversations:
    """The endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        body = await body_of(request)
        checked(CONVERSATIONS, body)
        id = f"conv_{key_of(request).id}"
        items, metadata = self._given(request, body.get("items") or []), body.get("metadata") or {}
        more = {"metadata": metadata, "created_at": int(time.time())}
        kept = await write(self._engine, request, id, input=items, **more)
        return JSONResponse(conversation_object(id, [kept]))

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`: every valid name is one, empty at first."""
        id = named(request.path_params["id"])
        return JSONResponse(conversation_object(id, asked_in(await self._engine.messages(id))))

    async def update(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}`."""
        id, body = named(request.path_params["id"]), await body_of(request)
        checked(CONVERSATION, body)
        if body.get("metadata") is None:
            raise BadInputError("metadata is missing", "metadata")
        await write(self._engine, request, id, metadata=body["metadata"])
        return await self.retrieve(request)

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}`: it is empty, as one that was never used."""
        id = named(request.path_params["id"])
        await write(self._engine, request, id, cleared=True)
        return JSONResponse({"id": id, "object": "conversation.deleted", "deleted": True})

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`."""
        return listed(request, await self._items(request))

    async def create_items(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/items`."""
        id, body = named(request.path_params["id"]), await body_of(request)
        checked(ITEMS, body)
        given = body.get("items")
        if not given:
            raise BadInputError("items must be a list that is not empty", "items")
        kept = await write(self._engine, request, id, input=self._given(request, given))
        return page_of([shown(item, item["id"]) for item in kept["input"]])

    async def item(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items/{item}`."""
        return JSONResponse(await self._item(request))

    async def delete_item(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/items/{item}`."""
        item = await self._item(request)
        await write(self._engine, request, request.path_params["id"], deleted=[item["id"]])
        return await self.retrieve(request)

    def _given(self, request: Request, given: list[Any]) -> list[Json]:
        """Return the items of a request, checked and with ids."""
        if not all(isinstance(item, dict) for item in given):
            raise BadInputError("an item must be an object", "items")
        # also raises for an item that is not supported
        self._engine.check_images(to_messages(given), "items")
        return numbered(given, key_of(request).id)

    async def _items(self, request: Request) -> list[Json]:
        return to_items(await self._engine.messages(named(request.path_params["id"])))

    async def _item(self, request: Request) -> Json:
        id = request.path_params["item"]
        found = next((item for item in await self._items(request) if item["id"] == id), None)
        if found is None:
            raise Refused(404, "there is no such item")
        return found
