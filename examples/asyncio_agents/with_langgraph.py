"""A turn is a run of a LangGraph graph, which a new message interrupts."""

import asyncio
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from trio_lanes.aio import open_lanes
from trio_lanes.aio.agents import Inbox, Turn, WhenBusy

model = ChatOpenAI(model="built-in")  # at OPENAI_BASE_URL
history: list[Any] = []


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node(think).add_edge(START, "think").compile()


async def answer(turn: Turn) -> None:
    asked = {"messages": [*history, *(("user", text) for text in turn.messages)]}
    async for kind, what in graph.astream(asked, stream_mode=["messages", "values"]):
        if kind == "messages":
            print(what[0].content, end="", flush=True)
    history[:] = what["messages"]
    print()


async def main() -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "ann", answer, when_busy=WhenBusy.INTERRUPT)
        inbox.post("a long text of 500")
        await asyncio.sleep(2)
        inbox.post("hello")


if __name__ == "__main__":
    asyncio.run(main())
