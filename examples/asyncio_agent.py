"""Turns of an agent, by openai-agents: in order for each user, at most four at once.

OPENAI_API_KEY=... python examples/asyncio_agent.py
"""

import asyncio

from agents import Agent, Runner, SQLiteSession

from trio_lanes.aio import open_lanes

AGENT = Agent("helper", instructions="Be brief.")
MESSAGES = [("ann", "hello"), ("bob", "good morning"), ("ann", "thanks")]


async def turn(memory: SQLiteSession, text: str) -> str:
    result = await Runner.run(AGENT, text, session=memory)
    return str(result.final_output)


async def main() -> None:
    memories = {user: SQLiteSession(user) for user, _ in MESSAGES}
    async with open_lanes({"main": 4}) as lanes:
        jobs = [
            lanes.submit_nowait(turn, memories[user], text, session=user, timeout=60)
            for user, text in MESSAGES
        ]
        for job in jobs:
            print(f"{job.session}: {await job.wait()}")


if __name__ == "__main__":
    asyncio.run(main())
