"""Tables over a storage: what a batch writes, what the next one reads, and what others are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trio_lanes.durable import DurableState
from trio_lanes.durable._chain import keys
from trio_lanes.durable._chain.batches import StorageTables, TryAgainError, hint_of
from trio_lanes.durable._contract.act import Lookups
from trio_lanes.durable._contract.protocol import REMEMBERED_FOR
from trio_lanes.durable._contract.records import Ended, InstanceInfo, Selection, SubmittedJob
from trio_lanes.durable._rules.job_record import JobRecord
from trio_lanes.durable._rules.tables import INSTANCES, LastStep, ListItem
from trio_lanes.durable.storage import MemoryNamespace, MemoryStorage, StorageError

LONG = "x" * 5_000
ENDED, RUNNING = DurableState.SUCCEEDED, DurableState.RUNNING


class Place:
    """A namespace, and instances that have opened it."""

    def __init__(self) -> None:
        self.time = self.here = 1e6
        self.memory = MemoryNamespace(lambda: self.time)
        # somebody listens, so that batches say what they change
        self.memory.listeners[MemoryStorage(self.memory)] = lambda hint: None

    def open(self, name: str = "me") -> StorageTables:
        storage = MemoryStorage(self.memory)
        tables = StorageTables(storage, name, lambda: self.here, lambda: None)
        tables.begin(write=True)
        if tables.batch is not None and not tables.batch.batch:  # as a store does, by its lanes
            tables.put_answer("the first", None, self.time)
            commit(tables)
        return tables


@pytest.fixture
def place() -> Place:
    return Place()


def commit(tables: StorageTables) -> None:
    """Commit, and begin the next batch."""
    tables.commit(look=False, news=())
    tables.begin(write=True)


def again(tables: StorageTables) -> None:
    """Begin the batch anew, with what others have committed."""
    tables.hear(None)
    tables.begin(write=True)


def job(id: int, **changes: Any) -> JobRecord:
    plain: dict[str, Any] = {
        "id": id,
        "name": "echo",
        "lane": "main",
        "session": None,
        "priority": 0,
        "payload": "1",
        "timeout": 5.0,
        "state": DurableState.WAITING,
        "submitted_at": 0.0,
    }
    return JobRecord(**{**plain, **changes})


def test_a_long_text_has_a_row_of_its_own_which_goes_with_its_job(place: Place) -> None:
    mine, theirs = place.open(), place.open("they")
    mine.insert(job(1, payload=LONG))
    mine.insert(job(2, session="s", place=3))
    commit(mine)
    again(theirs)
    short = theirs.get(2)
    head = theirs.head("s")
    assert head is short
    first = theirs.get(1)
    assert first is not None
    assert first.payload == LONG
    assert len(place.memory.maps["jobs"]["1"]) < 1_000
    assert place.memory.maps["texts"] == {"1 payload": LONG}
    one = mine.get(1)
    assert one is not None
    mine.update(one, checkpoint=LONG + "y")
    commit(mine)
    again(theirs)  # it is told that the job is another, without its texts
    told = theirs.get(1)
    assert told is not None
    assert told.checkpoint == LONG + "y"
    mine.update(one, checkpoint="short")
    commit(mine)
    assert place.memory.maps["texts"] == {"1 payload": LONG}
    mine.delete(one)
    commit(mine)
    assert place.memory.maps["texts"] == {}
    again(theirs)
    assert theirs.get(1) is None


def test_known_jobs_and_those_with_long_texts_are_read_together(place: Place) -> None:
    mine, theirs = place.open(), place.open("they")
    for id in (1, 2, 3):
        mine.insert(job(id, session="s", place=id, payload=LONG if id == 2 else "1"))
    commit(mine)
    again(theirs)
    known = theirs.get(1)
    jobs = theirs.clearable(None, "s", 9, 9)
    assert [one.payload for one in jobs] == ["1", LONG, "1"]
    assert jobs[-1] is known


def test_what_is_accepted_and_deleted_in_one_batch_leaves_nothing(place: Place) -> None:
    tables = place.open()
    one = job(1, key="k", emitted=1, sent=1)
    tables.insert(one)
    tables.append(one.event_list, ListItem(1, "1"))
    assert tables.keyed("k") is one
    tables.delete(one)
    assert tables.keyed("k") is None
    assert tables.get(1) is None
    assert tables.last_item(one.event_list) == 0
    commit(tables)
    assert not {"jobs", "keys", "texts"} & place.memory.maps.keys()
    assert place.memory.sets == {}


def test_a_key_that_is_given_up_is_that_of_the_next_job(place: Place) -> None:
    tables = place.open()
    first, second = job(1, key="k"), job(2, key="k")
    tables.insert(first)
    commit(tables)
    tables.update(first, key=None)
    tables.insert(second)
    commit(tables)
    assert place.memory.maps["keys"] == {"k": "2"}
    tables.update(second, key=None)
    commit(tables)
    assert place.memory.maps["keys"] == {}
    assert place.open().keyed("k") is None


def test_items_of_a_list_are_kept_replaced_and_dropped(place: Place) -> None:
    tables = place.open()
    for number in range(1, 6):
        tables.append("l", ListItem(number, f"{number}", taken=number < 4), keep=3)
    assert [item.number for item in tables.items("l", 0, 9)] == [3, 4, 5]
    commit(tables)
    assert [item.data for item in tables.items("l", 0, 9)] == ["3", "4", "5"]
    assert tables.last_item("l") == 5
    tables.append("l", ListItem(4, "4", taken=True))
    assert [item.taken for item in tables.items("l", 3, 1)] == [True]
    tables.drop_items("l", taken=False)
    tables.drop_items("l", taken=False)
    tables.append("l", ListItem(6, "6"), keep=3)
    commit(tables)
    assert [item.number for item in tables.items("l", 0, 9)] == [4, 6]
    tables.drop_items("l", taken=True)
    commit(tables)
    assert list(tables.items("l", 0, 9)) == []


def test_marks_are_known_to_all_until_they_are_forgotten(place: Place) -> None:
    mine, theirs = place.open(), place.open("they")
    mine.put_marks("m", [(1.0, 1), (2.0, 1)], 2, 9.0)
    commit(mine)
    again(theirs)
    assert list(theirs.marks("m")) == [(1.0, 1), (2.0, 1)]
    mine.put_marks("m", [(3.0, 1)], 2, 9.0)
    commit(mine)
    again(theirs)
    assert list(theirs.marks("m")) == [(2.0, 1), (3.0, 1)]
    mine.forget_marks("m")
    mine.put_marks("m", [(4.0, 1)], 2, 9.0)
    commit(mine)
    again(theirs)
    assert theirs.meters() == ["m"]
    assert list(theirs.marks("m")) == list(place.open("new").marks("m")) == [(4.0, 1)]
    mine.forget_unused(10.0)
    commit(mine)
    again(theirs)
    assert theirs.meters() == []
    assert list(theirs.marks("m")) == []


def test_counts_that_are_wrong_are_found_and_counted_anew(place: Place) -> None:
    tables = place.open()
    tables.insert(job(1))
    tables.count_end("main", ENDED)
    assert tables.inspect() == []  # before it is written
    commit(tables)
    assert tables.inspect() == []
    assert not tables.recount()
    key = f"counts {json.dumps(['main', 'waiting', 'echo'])}"
    place.memory.maps["whole"][key] = "7"
    wrong = place.open("they")
    assert wrong.inspect() == ["the stored counts of jobs are wrong"]
    assert wrong.recount()
    commit(wrong)
    assert place.memory.maps["whole"][key] == "1"
    assert wrong.inspect() == place.open("new").inspect() == []
    assert list(wrong.ends()) == [("main", "succeeded", 1)]


def test_ended_jobs_are_forgotten_in_portions(place: Place) -> None:
    tables = place.open()
    for id in (1, 2, 3):
        tables.insert(job(id, state=ENDED, due=place.time - 1))
    commit(tables)
    assert tables.next_over() == place.time - 1
    assert [tables.forget_due(place.time, 2), tables.forget_due(place.time, 2)] == [2, 1]
    assert tables.forget_due(place.time, 2) == 0
    assert tables.next_over() is None
    commit(tables)
    assert place.memory.maps["jobs"] == {}


def test_the_places_before_a_job_are_counted_up_to_a_limit(place: Place) -> None:
    tables = place.open()
    for id in (1, 2, 3):
        tables.insert(job(id, ready=id, priority=int(id == 3)))
    last = tables.get(2)
    assert last is not None
    assert [tables.ready_before(last, limit) for limit in (1, 9)] == [1, 2]
    assert tables.select(Selection(states=frozenset()), 0, 9, 0.0) == []


def test_an_answer_is_remembered_for_its_time_and_then_deleted(place: Place) -> None:
    tables = place.open()
    tables.put_answer("t", (1, 2), place.time)
    commit(tables)
    place.time += REMEMBERED_FOR - 1
    place.here += REMEMBERED_FOR - 1
    again(tables)
    assert place.open("they").answer("t", place.time) == ((1, 2),)
    assert tables.answer("t", place.time + 2) is None
    for _ in range(3):
        place.time += REMEMBERED_FOR
        place.here += REMEMBERED_FOR
        again(tables)
        tables.put_answer("another", None, place.time)
        commit(tables)
    kept = [rows for name, rows in place.memory.maps.items() if name.startswith("answers")]
    assert all("t" not in rows for rows in kept)
    assert len(kept) <= 2


def test_running_jobs_whose_texts_are_long_are_read_when_they_are_asked_for(place: Place) -> None:
    mine, theirs = place.open(), place.open("they")
    mine.insert(job(1, state=RUNNING, instance="me", fence=5, payload=LONG))
    mine.insert(job(2, state=RUNNING, instance="me", fence=4, lent=1))
    commit(mine)
    again(theirs)
    assert {one.payload for one in theirs.running("me")} == {LONG, "1"}
    assert theirs.fences_of("me") == {5: 1, 4: 2}
    holder = theirs.first_holder("main")
    assert holder is not None
    assert holder.id == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda tables: tables.delete(tables.get(1)),
        lambda tables: tables.update(tables.get(1), state=ENDED, due=2e6, ready=None),
        lambda tables: tables.update(tables.get(1), crashed_with=2),
        lambda tables: tables.forget_marks("m"),
    ],
    ids=["deleted", "ended", "suspected", "marks"],
)
def test_a_batch_that_comes_late_leaves_no_trace(
    place: Place, change: Callable[[Any], None]
) -> None:
    mine, theirs = place.open(), place.open("they")
    mine.insert(job(1, ready=1))
    mine.put_marks("m", [(1.0, 1)], 9, 9.0)
    commit(mine)
    again(theirs)
    change(mine)
    theirs.insert(job(2, ready=2))
    commit(theirs)
    with pytest.raises(TryAgainError) as late:
        mine.commit(look=False, news=())
    mine.undo_acts([], late.value)
    mine.begin(write=True)
    assert [one.id for one in mine.ready("main", 0, "echo", None, 9)] == [1, 2]
    assert mine.suspected() == set()
    assert list(mine.marks("m")) == [(1.0, 1)]
    assert mine.counts().all() == place.open("new").counts().all()
    assert mine.late == 1


def test_a_clock_that_is_set_moves_the_time_of_the_store_by_what_has_passed(place: Place) -> None:
    tables = place.open()
    began = tables.begin(write=True)
    for jump, passed in ((1_000.0, 2.0), (-2_000.0, 2.0), (0.0, 4.0)):
        place.time += jump + 2.0  # the clock is set, when two seconds have passed
        place.here += 2.0
        tables.hear(None)
        now = tables.begin(write=True)
        assert now - began == pytest.approx(passed, abs=0.01)
        assert tables.ahead_of_wall() == pytest.approx(now - place.time, abs=0.01)
        tables.put_answer(f"{now}", None, now)
        tables.commit(look=False, news=())


def test_a_newcomer_moves_the_time_no_further_than_a_lease_of_one_that_lives(place: Place) -> None:
    mine = place.open()
    info = InstanceInfo("me", "host", 1, 1e6, 1e6 + 30.0, (), 0)
    mine.put(INSTANCES, "me", info)
    commit(mine)
    place.time += 1_000.0
    assert place.open("they").begin(write=True) == pytest.approx(1e6 + 30.0)
    place.memory.listeners.clear()  # all have died: the time has passed
    storage = MemoryStorage(place.memory)
    alone = StorageTables(storage, "new", lambda: place.here, lambda: None)
    assert alone.begin(write=True) == pytest.approx(1e6 + 1_000.0)


def test_a_batch_knows_the_answers_and_steps_that_it_has_given(place: Place) -> None:
    tables = place.open()
    tables.put_answer("t", 5, place.time)
    step = LastStep(1, 2, ())
    tables.put_last_step("me", step)
    assert tables.answer("t", place.time) == (5,)
    assert tables.last_step("me") is step
    tables.append("l", ListItem(1, "1", taken=False))
    tables.drop_items("l", taken=False)
    commit(tables)
    assert place.open("they").last_step("me") == step
    assert tables.last_item("l") == 0
    tables.put_last_step("me", None)
    assert tables.last_step("me") is None
    commit(tables)
    assert place.open("they").last_step("me") is None


def test_data_that_cannot_be_read_are_an_error_and_nothing_is_known_of_them(place: Place) -> None:
    place.open()
    place.memory.maps["whole"]["settings lane\0main"] = "no JSON"
    tables = StorageTables(MemoryStorage(place.memory), "they", lambda: place.here, lambda: None)
    with pytest.raises(ValueError, match="Expecting value") as raised:
        tables.begin(write=True)
    assert tables.undo_acts([], raised.value)[0] == []
    assert tables.batch is None


def test_a_hint_of_too_many_jobs_names_none_and_a_long_delta_is_left_out(place: Place) -> None:
    hints: list[str] = []
    tables = place.open()
    place.memory.listeners[MemoryStorage(place.memory)] = hints.append
    tables.insert(job(1, payload="x" * 3_000))
    for id in range(2, 40):
        tables.insert(job(id, headers="x" * 3_000))
    tables.commit(look=True, news=[(id, None) for id in range(301)])
    tables.begin(write=True)
    tables.insert(job(50))
    ended = Ended(ENDED, "5")
    tables.commit(look=False, news=[(50, ended), (51, Ended(ENDED, "x" * 2_000)), (52, None)])
    first, second = map(hint_of, hints)
    assert (first.look, first.news, first.delta) == (True, None, "")
    assert (second.look, second.news) == (False, [(50, ended), (51, None), (52, None)])
    assert second.base == first.head.id
    assert '"50"' in second.delta


def test_data_of_another_schema_are_refused(place: Place) -> None:
    place.open()
    place.memory.maps["whole"]["meta schema"] = "99"
    with pytest.raises(StorageError, match="schema 99"):
        place.open("they")


def test_a_failed_job_that_is_being_revived_has_no_time_at_which_it_is_over() -> None:
    half_changed = job(1, state=DurableState.FAILED, due=None)
    assert [name for name, _ in keys.texts_of(half_changed)] == ["states"]


def test_a_dead_job_that_keeps_its_place_is_the_head_of_its_session_for_others_too(
    place: Place,
) -> None:
    mine, theirs = place.open(), place.open("they")
    first = job(1, session="s", place=1)
    mine.insert(first)
    mine.insert(job(2, session="s", place=2))
    commit(mine)
    again(theirs)
    head = theirs.head("s")
    assert head is not None
    mine.update(first, state=DurableState.DEAD)
    commit(mine)
    again(theirs)
    assert theirs.head("s") is head
    assert head.state is DurableState.DEAD


def test_the_last_jobs_of_a_lane_are_read_in_pages_and_fronts_are_dropped_when_they_are_many(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._chain.tables.PAGE", 2)
    monkeypatch.setattr("trio_lanes.durable._chain.tables.QUEUES_KEPT", 1)
    tables = place.open()
    for id in range(1, 6):
        tables.insert(job(id, session=f"s{id}", place=id))
    commit(tables)
    changed = tables.get(4)
    assert changed is not None
    tables.update(changed, priority=1)
    assert [one.id for one in tables.clearable("main", None, 5, 9)] == [4, 3, 2, 1]
    heads = [tables.head(f"s{id}") for id in (1, 2)]
    commit(tables)
    assert [tables.head(f"s{id}") for id in (1, 2)] == heads


def test_what_was_guessed_is_looked_up_if_no_commit_compares_it(place: Place) -> None:
    tables, theirs = place.open(), place.open("they")
    theirs.insert(job(1, key="k"))
    commit(theirs)
    again(tables)
    asked = [Lookups(batch=[SubmittedJob(name="echo", key="k")])]
    tables.begin(asked, write=True)
    assert tables.keyed("k") is None
    with pytest.raises(TryAgainError) as wrong:
        tables.commit(look=False, news=())  # the act was refused, and has changed nothing
    tables.undo_acts([], wrong.value)
    tables.begin(asked, write=True)
    found = tables.keyed("k")
    assert found is not None
    assert found.id == 1


def test_who_has_heard_too_much_for_its_next_batch_reads_what_it_has_missed(place: Place) -> None:
    hints: list[str] = []
    mine, theirs = place.open(), place.open("they")
    place.memory.listeners[MemoryStorage(place.memory)] = hints.append
    for id in range(1, 203):
        theirs.insert(job(id))
        commit(theirs)
    for hint in hints:
        mine.hear(hint_of(hint))
    mine.begin(write=True)
    assert mine.batch == theirs.batch
    assert mine.counts().all() == theirs.counts().all()


def test_jobs_that_are_forgotten_together_take_few_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = place.open()
    for id in range(1, 101):
        tables.insert(job(id, state=ENDED, due=place.time - 1))
    commit(tables)
    read, reads = MemoryStorage.read, list[None]()

    def counted(*of: Any) -> Any:
        reads.append(None)
        return read(*of)

    monkeypatch.setattr(MemoryStorage, "read", counted)
    assert tables.forget_due(place.time, 500) == 100
    assert len(reads) == 2
