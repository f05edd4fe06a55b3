"""The asynchronous `openai` client on Trio: python openai_trio.py BASE_URL."""

import sys

import openai
import trio


async def main() -> None:
    async with openai.AsyncOpenAI(base_url=sys.argv[1], api_key="any", timeout=120) as client:
        conversation = await client.conversations.create()
        texts: list[str] = []

        async def ask(text: str) -> None:
            stream = await client.responses.create(
                input=text, conversation=conversation.id, stream=True
            )
            async for event in stream:
                if event.type == "response.completed":
                    texts.append(event.response.output_text)

        async with trio.open_nursery() as nursery:
            for text in ("slow 1", "two"):
                nursery.start_soon(ask, text)
                await trio.sleep(0.3)
        assert texts[0].startswith("Sorry"), texts
        assert "message 2" in texts[1], texts

        with trio.move_on_after(0.5):  # Trio cancels the request, and that cancels the job
            await client.responses.create(input="slow 600")
        response = await client.responses.create(input="hello")
        assert response.output_text.startswith("Hello")


trio.run(main)
