"""A test of affinity: where the next job of a session runs."""

from __future__ import annotations

from typing import Any

from ... import RateLimit
from .. import Finish, LaneLimit, SubmittedJob, Succeeded
from ._bench import Bench, Played, stories


@stories
class AffinityStories:
    """A test of affinity."""

    async def test_a_session_stays_for_a_while_with_the_instance_that_ran_its_last_job(
        self, bench: Bench
    ) -> None:
        async def turn_of(store: Played, room: int) -> float | None:
            """Run a job of the session; or return when one that waits may be claimed, or 0."""
            step = await store.step([], 9)
            if not step.claims:
                return step.next_due or 0.0
            ends = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in step.claims]
            await store.step(ends, room)
            return None

        if not (bench.store().leased and bench.virtual):
            return  # it takes one instance, or the time is real
        rates = (RateLimit(1000, per=1.0, algorithm="sliding"),)
        lanes = {"main": LaneLimit(9), "rated": LaneLimit(9, rates=rates)}
        job = SubmittedJob(name="echo", session="s")
        rated = SubmittedJob(name="echo", session="rated", lane="rated")
        of: dict[str, Any] = {"affinity": 60.0, "lease_ttl": 3600.0, "lanes": lanes}
        async with bench.playing(**of) as home, bench.lanes(worker=False) as asking:
            async with bench.playing(**of) as other:
                await home.enqueue([rated])
                assert await turn_of(home, 9) is None
                await home.enqueue([rated])
                assert 0 < (await turn_of(other, 9) or 0.0) <= 60
                assert await turn_of(home, 9) is None
                for room in (9, 0):
                    await home.enqueue([job])
                    assert await turn_of(home, room) is None
                    await home.enqueue([job])
                    if room:
                        assert 0 < (await turn_of(other, 9) or 0.0) <= 60
                        assert await turn_of(home, room) is None
                    else:
                        assert await turn_of(other, 9) is None  # the home is full
                await home.enqueue([job])
                assert await turn_of(home, 9) is not None
            assert await turn_of(home, 9) is None  # its home has left
            async with bench.playing(**of) as other:
                await other.enqueue([job])
                assert await turn_of(other, 9) is not None
                await bench.advance(60.0, asking)
                assert await turn_of(other, 9) is None
