"""Every order of the calls of two and three instances, with faults: all promises hold in each."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from tests.durable.orders import Beat, Claim, Job, Order, Story, Wrong
from tests.durable.stories import (
    RUNS,
    SMALL,
    TWO,
    Broken,
    begun_given_back,
    bounded,
    claims_without_a_place,
    each_more_or_less,
    no_changed_jobs,
    no_new_jobs,
    no_settings,
    refusals_forgotten,
    undoing,
    with_more,
)
from trio_lanes import RateLimit
from trio_lanes.durable import LaneLimit, SubmittedJob
from trio_lanes.durable._chain import batches, memory, storage
from trio_lanes.durable._chain.batches import StorageTables, TryAgainError
from trio_lanes.durable._chain.image import Image
from trio_lanes.durable._chain.memory import MemoryStorage
from trio_lanes.durable._chain.small_maps import where_answers_are
from trio_lanes.durable._chain.storage import Head
from trio_lanes.durable._chain.tables import ChainTables
from trio_lanes.durable._options.schedule import DurableSchedule
from trio_lanes.durable._rules.running import Running
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable._sql.cache import Cache
from trio_lanes.durable.acts.locks import Acquire, Release
from trio_lanes.durable.acts.orders import Pause
from trio_lanes.durable.acts.schedules import DropSchedule, PutSchedule

from .orders import Explorer

RATED = {"main": LaneLimit(9, rates=(RateLimit(4, per=60.0, algorithm="sliding"),))}


def scheduled(name: str, next: float) -> Order:
    job = SubmittedJob(name="a")
    return Order(PutSchedule(DurableSchedule(name=name, job=job, every=5.0, next=next)))


STORIES = {
    **bounded(
        {
            "jobs of a session": {"switches": 3},
            "a key": {"faults": 1, "switches": 0},
            "a full lane": {"switches": 3},
            "an end": {"switches": 0},
            "a lost answer": {"switches": 0},
            "a lost refusal": {"switches": 1},
            "a lease": {"switches": 0},
            "a death": {},
            "a heartbeat": {},
            "what an instance runs": {"switches": 4},
            "an order to clear": {"faults": 1, "switches": 0},
            "another limit": {"switches": 3},
            "a store that goes back": {},
            "three instances": {"switches": 1},
        }
    ),
    "hints that come at once": Story(TWO, hints="at once", switches=4),
    "hints that come later": Story(
        [[[Job("a1", lane="small")], [Job("a2")]], [[Job("b1")], [Claim()]]],
        lanes=SMALL,
        hints="later",
        idles=True,
        switches=0,
    ),
    "two lost answers": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")]]], faults=2, kinds=("it comes late",), switches=0
    ),
    "a lost answer to all at once": Story(
        [[[Job("a1", "s"), Claim()]], [[Claim()]]], faults=1, switches=0
    ),
    "an answer of another time": Story(
        [[[Job("a1")]], [[Job("b1")]]], faults=1, time=1, switches=0
    ),
    "an end that comes late": Story(
        [[[Claim(ends=True)]], []],
        before=RUNS,
        faults=1,
        kinds=("it comes late",),
        time=2,
    ),
    "a heartbeat that comes between": Story(
        [[[Beat()], [Beat()]], [[Beat()]]], before=RUNS, time=2, idles=True
    ),
    "one place": Story(
        [[[Claim()], [Claim(ends=True)]], [[Claim()], [Claim(ends=True)]]],
        before=[[[Job("a0"), Job("a1")]], []],
        lanes={"main": LaneLimit(1)},
    ),
    "a paused session": Story(
        [[[Order(Pause(None, "s", 10.0))], [Claim()]], [[Job("b1", "s")], [Claim()]]],
        time=1,
        switches=1,
    ),
    "a rate": Story(
        [[[Claim()], [Claim(ends=True)]], [[Job("b1")], [Claim()]]],
        before=[[[Job("a0"), Job("a1"), Job("a2")], [Claim()]], []],
        lanes=RATED,
        switches=3,
    ),
    "a lock": Story(
        [
            [[Order(Acquire("l", False))], [Order(Acquire("m", False))]],
            [[Order(Acquire("l", False))], [Order(Release(0, used=True))]],
        ],
        faults=1,
        kinds=("it comes late",),
        time=1,
        switches=0,
    ),
    "schedules": Story(
        [[[scheduled("s", 2e9)], [Order(DropSchedule("t"))]], [[scheduled("t", 1.9e9)], [Beat()]]],
        faults=1,
        kinds=("its answer is lost", "it comes late"),
        switches=0,
    ),
    "times": Story(
        [[[Job("a1", delay=10.0)], [Claim()]], [[Job("b1", expires=15.0)], [Claim()]]],
        time=1,
        switches=1,
    ),
    "a store that goes back, with faults": Story(
        [[[Job("a1")]], [[Job("b1", "s")]]], back=True, faults=1, switches=0
    ),
    "a store that goes back, with hints": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")]]], back=True, hints="later", switches=0
    ),
    "turns": Story(TWO, late=1, switches=4),
    "turns, with hints": Story(TWO, late=1, hints="later", switches=0),
    "turns and deaths": Story(
        TWO, late=1, faults=1, kinds=("dies before it", "it is lost"), switches=1
    ),
    "a storage that keeps little": Story(TWO, kept=1, switches=3),
    "nobody listens": Story(TWO, listens=False, switches=3),
    "three instances that take turns": Story(
        [[[Job("a1")]], [[Job("b1")]], [[Job("c1")]]], late=1, switches=4
    ),
}


@pytest.mark.parametrize("name", STORIES)
@each_more_or_less
def test_in_every_order_of_calls_and_faults_a_story_keeps_all_promises(
    name: str, more: int, hints: Any
) -> None:
    story = with_more(STORIES[name], more, hints)
    explorer = Explorer(story)
    explorer.explore()
    print(f"{name}: {explorer.number_of_orders():,} orders in {explorer.plays} plays")
    assert explorer.plays > 5


# ---- what is found


def not_compared(patch: pytest.MonkeyPatch) -> None:
    commit = MemoryStorage.commit

    def commit_always(real: Any, batch: Any) -> Any:
        return commit(real, attrs.evolve(batch, base=real._memory.newest))

    patch.setattr(MemoryStorage, "commit", commit_always)


def compared_before(patch: pytest.MonkeyPatch) -> None:
    commit = StorageTables.commit

    def compare_and_commit(tables: Any, **how: Any) -> None:
        seen = tables._read([])
        if seen.head != tables.batch:
            raise TryAgainError(seen.head, seen.missed)
        commit(tables, **how)

    not_compared(patch)
    patch.setattr(StorageTables, "commit", compare_and_commit)


def taken_twice(patch: pytest.MonkeyPatch) -> None:
    catch_up = Image.catch_up

    def take_twice(tables: Any, missed: Any) -> None:
        catch_up(tables, missed)
        catch_up(tables, missed)

    patch.setattr(Image, "catch_up", take_twice)


def with_a_gap(patch: pytest.MonkeyPatch) -> None:
    catch_up = Image.catch_up

    def leave_one_out(tables: Any, missed: Any) -> None:
        catch_up(tables, [*missed[:-2], *missed[-1:]])

    patch.setattr(Image, "catch_up", leave_one_out)


def hints_with_a_gap(patch: pytest.MonkeyPatch) -> None:
    def take_any(tables: Any) -> None:
        while tables._told:
            hint = tables._told.popleft()
            if tables.batch is not None and hint.head.batch > tables.batch.batch:
                tables.catch_up([(hint.head, hint.delta)])

    patch.setattr(StorageTables, "_take_told", take_any)


def kept_over_a_broken_chain(patch: pytest.MonkeyPatch) -> None:
    undo = StorageTables._undo_to_try_again

    def keep(tables: Any, error: Any) -> None:
        if error.head is not None and error.missed is None and tables.batch is not None:
            tables._put_back()
            tables.batch = error.head
            error = TryAgainError()
        undo(tables, error)

    patch.setattr(StorageTables, "_undo_to_try_again", keep)


def numbers_compared(patch: pytest.MonkeyPatch) -> None:
    commit = MemoryStorage.commit

    def compare_numbers(real: Any, batch: Any) -> Any:
        newest = real._memory.newest
        return commit(
            real, attrs.evolve(batch, base=newest) if newest.batch == batch.base.batch else batch
        )

    def missed_of(chain: Sequence[Any], known: Head | None) -> Any:
        if known is None:
            return None
        return storage.told([one for one in chain if one[0].batch > known.batch])

    patch.setattr(MemoryStorage, "commit", compare_numbers)
    patch.setattr(memory, "missed_of", missed_of)


def looked_for(patch: pytest.MonkeyPatch) -> None:
    undo_acts = StorageTables.undo_acts

    def look(tables: Any, acts: Any, error: Any) -> Any:
        again, refused, unknown = undo_acts(tables, acts, error)
        if unknown:
            maps = tables._storage.real._memory.maps
            kept = [rows for kind, rows in maps.items() if kind.startswith("answers ")]
            unknown = any(act.ticket in rows for act in acts for rows in kept)
        return again, refused, unknown

    patch.setattr(StorageTables, "undo_acts", look)


def not_displaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StorageTables, "_is_unsure", property(lambda _: False, lambda *_: None), False)


def decided_as_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StorageTables, "answer", lambda *_: None)


def old_answers_forgotten(patch: pytest.MonkeyPatch) -> None:
    of = where_answers_are
    patch.setattr(batches, "where_answers_are", lambda now: (of(now)[0], of(now)[0]))


def heartbeats_not_heard(patch: pytest.MonkeyPatch) -> None:
    take = Image._take_settings

    def take_others(tables: Any, key: str, text: str | None) -> None:
        if not key.startswith(INSTANCES.name):
            take(tables, key, text)

    patch.setattr(Image, "_take_settings", take_others)


def given_up_without_comparison(patch: pytest.MonkeyPatch) -> None:
    commit = MemoryStorage.commit

    def commit_always(real: Any, batch: Any) -> Any:
        of = batch.writes.drop.get("whole", ())
        is_given_up = any(key.startswith(f"settings {INSTANCES.name}\0") for key in of)
        base = real._memory.newest if is_given_up else batch.base
        return commit(real, attrs.evolve(batch, base=base))

    patch.setattr(MemoryStorage, "commit", commit_always)


def runs_of_others_not_counted(patch: pytest.MonkeyPatch) -> None:
    is_now = Cache.is_now

    def take_less(cache: Any, job: Any) -> None:
        runs, cache.runs = cache.runs, Running()
        is_now(cache, job)
        cache.runs = runs

    patch.setattr(Cache, "is_now", take_less)


def numbers_missed(patch: pytest.MonkeyPatch) -> None:
    def head(batch: int, id: str, _: int, clock: float, ahead: float) -> Head:
        return Head(batch, id, 0, clock, ahead)

    patch.setattr(batches, "Head", head)


def counts_missed(patch: pytest.MonkeyPatch) -> None:
    write = ChainTables._write_numbers
    patch.setattr(ChainTables, "_write_numbers", lambda of, writes, _: write(of, writes, []))


def marks_missed(patch: pytest.MonkeyPatch) -> None:
    write = ChainTables._write_marks
    patch.setattr(ChainTables, "_write_marks", lambda of, writes, _: write(of, writes, []))


def no_counts(tables: Any) -> None:
    tables._cache.count()
    tables._cache.uncounted.clear()


def no_requests(tables: Any) -> None:
    tables._requests_before.clear()


def no_schedules(tables: Any) -> None:
    tables._schedules_before.clear()


def no_marks(tables: Any) -> None:
    tables._meters_before.clear()


def no_times(tables: Any) -> None:
    tables._parked_before = float("inf")


def no_queue_fronts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StorageTables, "_put_back", lambda of: of.undo() if of.batch else of.forget())


def guesses_not_compared(kind: str) -> Broken:
    def broken(patch: pytest.MonkeyPatch) -> None:
        commit = MemoryStorage.commit

        def compare_less(real: Any, batch: Any) -> Any:
            absent = {of: keys for of, keys in batch.absent.items() if not of.startswith(kind)}
            empty = {of: names for of, names in batch.empty.items() if of != kind}
            return commit(real, attrs.evolve(batch, absent=absent, empty=empty))

        patch.setattr(MemoryStorage, "commit", compare_less)

    return broken


BROKEN: dict[str, tuple[str, Broken]] = {
    "no comparison": ("jobs of a session", not_compared),
    "a comparison before the writes": ("jobs of a session", compared_before),
    "deltas applied twice": ("a rate", taken_twice),
    "deltas with a gap": ("jobs of a session", with_a_gap),
    "hints with a gap": ("hints that come later", hints_with_a_gap),
    "an image kept over a broken chain": ("a store that goes back", kept_over_a_broken_chain),
    "an image kept behind all deltas": ("a storage that keeps little", kept_over_a_broken_chain),
    "numbers compared and ids not": ("a store that goes back", numbers_compared),
    "a lost commit that is looked for": ("a lost answer", looked_for),
    "a lost commit whose place is not taken": ("an end that comes late", not_displaced),
    "answers kept and refusals not": ("a lost refusal", refusals_forgotten),
    "a batch decided as lost that was committed": ("a lost answer", decided_as_lost),
    "answers forgotten as time passes": ("an answer of another time", old_answers_forgotten),
    "an instance given up by a stale image": ("a heartbeat", heartbeats_not_heard),
    "an instance given up without comparison": (
        "a heartbeat that comes between",
        given_up_without_comparison,
    ),
    "a claim without a place": ("another limit", claims_without_a_place),
    "runs of others that take no place": ("one place", runs_of_others_not_counted),
    "a give-back of what begins": ("what an instance runs", begun_given_back),
    "a head that misses the last number": ("jobs of a session", numbers_missed),
    "a delta that misses a count": ("jobs of a session", counts_missed),
    "a delta that misses a mark": ("a rate", marks_missed),
    "counts that stay after a late batch": ("jobs of a session", undoing(Image, no_counts)),
    "settings that stay after a late batch": ("another limit", undoing(Image, no_settings)),
    "new jobs that stay after a late batch": ("jobs of a session", undoing(Image, no_new_jobs)),
    "changes that stay after a late batch": (
        "what an instance runs",
        undoing(Image, no_changed_jobs),
    ),
    "guessed queues that stay after a wrong guess": ("an end", no_queue_fronts),
    "requests that stay after a late batch": ("a lock", undoing(Image, no_requests)),
    "schedules that stay after a late batch": ("schedules", undoing(Image, no_schedules)),
    "marks that stay after a late batch": ("a rate", undoing(Image, no_marks)),
    "a time that stays after a late batch": ("times", undoing(Image, no_times)),
    "a ticket that is guessed and not compared": (
        "a lost answer",
        guesses_not_compared("answers "),
    ),
    "a key that is guessed and not compared": ("a key", guesses_not_compared("keys")),
    "a session that is guessed and not compared": ("an end", guesses_not_compared("queues")),
}
"""By fault: the story in which it is found, and what it is in the library.

The design lists thirteen faults. Twelve are here. The guard of an instance that
is given up is the comparison of the batch, and an image that has heard the heartbeats, since these
stand in the chain: it is broken in both ways. A floor over a transaction that is open has no
counterpart: no transactions of users write to a storage. "A head that misses a count" is two: the
head has the last number, and counts stand in the deltas.
"""


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found_in_some_order(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    name, broken = BROKEN[fault]
    explorer = Explorer(STORIES[name], broken=lambda: broken(monkeypatch))
    with pytest.raises(Wrong) as found:
        explorer.explore()
    print(f"{fault}: {explorer.plays} plays, {found.value}")
