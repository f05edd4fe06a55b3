"""A test of affinity: where the next job of a session runs."""

from __future__ import annotations

from typing import Any

from ... import RateLimit
from .. import Finish, LaneLimit, Succeeded
from ._bench import Bench, Played, new_job


class AffinityStories(Bench):
    """A test of affinity."""

    async def test_a_session_stays_for_a_while_where_its_last_job_ran(self) -> None:
        async def turn_of(store: Played, room: int) -> float | None:
            """Run a job of the session; or return when one that waits may be claimed, or 0."""
            step = await store.step([], 9)
            if not step.claims:
                return step.next_due or 0.0
            ends = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in step.claims]
            await store.step(ends, room)
            return None

        if not (self.leased and self.virtual):
            return  # it takes one instance, or the time is real
        rates = (RateLimit(1000, per=1.0, algorithm="sliding"),)
        lanes = {"main": LaneLimit(9), "rated": LaneLimit(9, rates=rates)}
        job = new_job(session="s")
        rated = new_job(session="rated", lane="rated")
        of: dict[str, Any] = {"affinity": 60.0, "lease_ttl": 3600.0, "lanes": lanes}
        async with self.playing(**of) as home, self.instance(worker=False):
            async with self.playing(**of) as other:
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
            async with self.playing(**of) as other:
                await other.enqueue([job])
                assert await turn_of(other, 9) is not None
                await self.advance(60.0)
                assert await turn_of(other, 9) is None
