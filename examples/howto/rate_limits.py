"""Two limits at once: two requests a second, and a thousand tokens a minute."""

import trio

from trio_lanes import LaneConfig, RateLimit, current_job, open_lanes

MODEL = LaneConfig(
    concurrency=8,
    rate=[
        RateLimit(2, per=1, algorithm="sliding"),
        RateLimit(1_000, per=60, unit="tokens", algorithm="sliding"),
    ],
)


async def ask(question: str) -> None:
    job = current_job()
    assert job is not None
    print(f"{question} after {trio.current_time() - job.submitted_at:.1f} s")
    await trio.sleep(0.2)  # the model answers, and says what that took
    job.charge(tokens=100)  # 400 were taken at the start: 300 go back


async def main() -> None:
    async with open_lanes({"main": MODEL}) as lanes:
        for number in range(1, 7):
            lanes.start_soon(ask, f"question {number}", cost={"tokens": 400})


if __name__ == "__main__":
    trio.run(main)
