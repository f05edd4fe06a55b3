"""What a session needs in memory is loaded when its lane comes to life and dropped when it goes."""

import trio

from trio_lanes import Lane, LaneInstrument, SessionLane, current_job, open_lanes


class Histories(LaneInstrument):
    """The conversations of the sessions that have work now."""

    def __init__(self) -> None:
        self.loaded: dict[str, list[str]] = {}

    async def of(self, session: str) -> list[str]:
        if session not in self.loaded:
            await trio.sleep(0.1)  # from a database
            self.loaded[session] = []
        return self.loaded[session]

    def lane_idle(self, lane: Lane | SessionLane) -> None:
        if isinstance(lane, SessionLane):
            self.loaded.pop(lane.key, None)


async def turn(histories: Histories, text: str) -> None:
    job = current_job()
    assert job is not None
    assert job.session is not None
    history = await histories.of(job.session)
    history.append(text)
    print(job.session, history)


async def main() -> None:
    histories = Histories()
    async with open_lanes({"main": 4}, instruments=[histories]) as lanes:
        for text in ("hello", "how are you?"):
            lanes.start_soon(turn, histories, text, session="alice")
        await lanes.wait_idle()
        print("loaded:", histories.loaded)


if __name__ == "__main__":
    trio.run(main)
