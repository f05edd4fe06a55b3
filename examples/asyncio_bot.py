"""A bot for Telegram, by aiogram: the messages of a chat in order, at most four replies at once.

BOT_TOKEN=... python examples/asyncio_bot.py
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiogram import Bot, Dispatcher
from aiogram.types import Message

from trio_lanes.aio import Lanes, open_lanes


async def reply(message: Message) -> None:
    await asyncio.sleep(len(message.text or "") / 10)  # a model thinks
    await message.answer(f"you said {message.text!r}")


def in_lanes(lanes: Lanes) -> Dispatcher:
    """A dispatcher whose handlers of messages run in ``lanes``, each chat in order."""
    dispatcher = Dispatcher()
    dispatcher.message.register(reply)

    async def in_order(
        handler: Callable[..., Awaitable[Any]], message: Any, data: dict[str, Any]
    ) -> Any:
        return await lanes.run(handler, message, data, session=f"{message.chat.id}", timeout=60)

    dispatcher.message.outer_middleware(in_order)
    return dispatcher


async def main() -> None:
    async with open_lanes({"main": 4}) as lanes, Bot(os.environ["BOT_TOKEN"]) as bot:
        await in_lanes(lanes).start_polling(bot)  # until Ctrl-C or SIGTERM


if __name__ == "__main__":
    asyncio.run(main())
