import trio

from trio_lanes.durable import SqliteStore, open_durable_lanes


async def answer(question: str) -> str:
    print(f"a model thinks about {question}")
    return f"{question}, answered"


async def main() -> None:
    store = SqliteStore("jobs.db")  # what it accepts outlives the process
    async with open_durable_lanes(store, {"answer": answer}, {"main": 2}) as lanes:
        for message, question in [("m-1", "one"), ("m-2", "two"), ("m-2", "two")]:
            job = await lanes.submit("answer", question, session="ann", key=message)
            print(await job.wait())  # a message that comes twice is answered once


if __name__ == "__main__":
    trio.run(main)
