"""Every order of the trips of two and three instances, with faults: all promises hold in each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.durable.orders import Beat, Claim, Job, Story, Wrong
from tests.durable.stories import (
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
from trio_lanes.durable import LaneLimit
from trio_lanes.durable._postgres import tables as module
from trio_lanes.durable._postgres.delta import Changes
from trio_lanes.durable._postgres.image import HEAD, Image
from trio_lanes.durable._postgres.tables import PostgresTables
from trio_lanes.durable._rules.counts import Counts

from .orders import Explorer, Lock, Sql, Unlock
from .server import Server
from .test_image import compare_at_rest

pytestmark = [pytest.mark.real_processes, pytest.mark.slow]

STORIES = {
    **bounded(
        {
            "jobs of a session": {"switches": 2},
            "a key": {},
            "a full lane": {"switches": 2},
            "an end": {"switches": 1},
            "a lost answer": {"switches": 1},
            "a lost refusal": {},
            "a lease": {"switches": 1},
            "a death": {"switches": 1},
            "a heartbeat": {"switches": 2},
            "what an instance runs": {"switches": 2},
            "an order to clear": {},
            "another limit": {"switches": 2},
            "a store that goes back": {"switches": 2},
            "three instances": {"switches": 1},
        }
    ),
    "under the lock": Story(TWO, late=1, switches=3),
    "faults under the lock": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")], [Claim()]]], late=1, faults=1, switches=0
    ),
    "notices that come later": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")], [Claim()]]],
        hints="later",
        switches=1,
    ),
    "jobs of the user's transactions": Story(
        [[[Sql("u1")]], [[Sql("u2")]], [[Beat()], [Beat()], [Beat()]]], switches=2
    ),
    "a lock": Story(
        [[[Lock()], [Unlock()]], [[Lock()], [Unlock()]]],
        switches=2,
    ),
    "a lock, and a lost answer": Story(
        [[[Unlock()]], [[Lock()], [Unlock()]]], before=[[[Lock()]], []], faults=1, switches=1
    ),
    "a holder of a lock that dies": Story(
        [[[Unlock()]], [[Lock()], [Beat()]]],
        before=[[[Lock()]], []],
        faults=1,
        kinds=("dies before it", "dies after it"),
        time=2,
        switches=1,
    ),
    "a lane from which nobody has claimed yet": Story(
        [
            [[Job("a1", lane="new")], [Job("a2", lane="new")]],
            [[Job("b1", lane="new"), Claim(2)], [Claim(2)]],
        ],
        lanes={"main": LaneLimit(9), "new": LaneLimit(9)},
    ),
}


@contextmanager
def exploring(server: Server, namespace: str, story: Story, *broken: Any) -> Iterator[Explorer]:
    explorer = Explorer(server.dsn(), namespace, story, compare_at_rest, *broken)
    try:
        yield explorer
    finally:
        explorer.close()


@pytest.mark.parametrize("name", STORIES)
@each_more_or_less
def test_in_every_order_of_trips_and_faults_a_story_keeps_all_promises(
    server: Server, namespace: str, name: str, more: int, hints: Any
) -> None:
    story = with_more(STORIES[name], more, hints)
    with exploring(server, namespace, story) as explorer:
        orders = explorer.explore()
    print(f"{name}: {orders} orders")
    assert orders > 5


# ---- what is found

COMPARISON = "IF newest.batch <> known OR newest.id <> known_id THEN"
NO_COMPARISON = COMPARISON, "known := newest.batch;\n    IF false THEN"


def compared_before(patch: pytest.MonkeyPatch) -> None:
    send = PostgresTables._send_free

    def compare_and_send(tables: Any, values: Any, notice: Any) -> Any:
        tables._check(tables._connection.execute(tables._named(HEAD)).fetchone())
        return send(tables, values, notice)

    patch.setattr(PostgresTables, "_send_free", compare_and_send)


def taken_twice(patch: pytest.MonkeyPatch) -> None:
    take = Image._take

    def take_twice(tables: Any, delta: Any) -> None:
        take(tables, delta)
        take(tables, delta)

    patch.setattr(Image, "_take", take_twice)


def with_a_gap(patch: pytest.MonkeyPatch) -> None:
    catch_up = Image._catch_up

    def leave_one_out(tables: Any, found: Any, head: Any) -> bool:
        rows = list(found)
        rows[1:2] = [(*row[:7], Changes().text(), *row[8:]) for row in rows[1:2]]
        return catch_up(tables, rows, head)

    patch.setattr(Image, "_catch_up", leave_one_out)


def kept_over_a_broken_chain(patch: pytest.MonkeyPatch) -> None:
    catch_up = Image._catch_up

    def keep(tables: Any, found: Any, head: Any) -> bool:
        if tables._version is not None and not catch_up(tables, found, head):
            tables._version, tables._batch = head.batch, head.id
        return tables._version is not None

    patch.setattr(Image, "_catch_up", keep)


def looked_for(patch: pytest.MonkeyPatch) -> None:
    undo_acts = PostgresTables.undo_acts

    def look(tables: Any, acts: Any, error: Any) -> Any:
        again, refused, unknown = undo_acts(tables, acts, error)
        if unknown:
            tables._free = False
            tables._connection = tables._link.connected()
            tickets = [act.ticket for act in acts]
            found = tables._execute("SELECT FROM main.answers WHERE ticket = ANY(%s)", (tickets,))
            unknown = found.rowcount > 0
        return again, refused, unknown

    patch.setattr(PostgresTables, "undo_acts", look)


def floor_over_an_open_transaction(patch: pytest.MonkeyPatch) -> None:
    given = module._given

    def note(row: Any, now: float) -> Any:
        floor = f"SELECT id FROM main.submissions WHERE id > {row[0]} ORDER"
        patch.setattr(module, "_TAKE_IN", take_in.replace(all_of_them, floor))
        return given(row, now)

    take_in, all_of_them = module._TAKE_IN, "SELECT id FROM main.submissions ORDER"
    assert all_of_them in take_in
    patch.setattr(module, "_given", note)


def decided_as_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PostgresTables, "answer", lambda *_: None)


def heartbeats_not_heard(patch: pytest.MonkeyPatch) -> None:
    take = Image._take

    def take_others(tables: Any, delta: Any) -> None:
        for key in [key for key in delta.settings if key[0] == "instance"]:
            del delta.settings[key]
        take(tables, delta)

    patch.setattr(Image, "_take", take_others)


def no_counts(tables: Any) -> None:
    tables._cache.count()
    tables._cache.uncounted.clear()
    tables._changes.counts.clear()


def no_requests(tables: Any) -> None:
    tables._requests_before.clear()


def requests_not_said(patch: pytest.MonkeyPatch) -> None:
    text = Changes.text

    def say_less(changes: Changes) -> str | None:
        changes.requests.clear()
        return text(changes)

    patch.setattr(Changes, "text", say_less)


def others_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Counts, "waiting_for", lambda *_: 0)


def no_queue_fronts(patch: pytest.MonkeyPatch) -> None:
    undo = PostgresTables.undo

    def undo_less(tables: Any) -> None:
        guesses, tables._guesses = tables._guesses, None
        undo(tables)
        tables._guesses = guesses

    patch.setattr(PostgresTables, "undo", undo_less)


def not_compared_guesses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PostgresTables, "_guessed", lambda _: None)


BROKEN: dict[str, tuple[str, Broken | None, tuple[str, str] | None]] = {
    "no comparison": ("jobs of a session", None, NO_COMPARISON),
    "a comparison before the writes": ("jobs of a session", compared_before, NO_COMPARISON),
    "deltas applied twice": ("jobs of a session", taken_twice, None),
    "deltas with a gap": ("jobs of a session", with_a_gap, None),
    "answers kept and refusals not": ("a lost refusal", refusals_forgotten, None),
    "an image kept over a broken chain": (
        "a store that goes back",
        kept_over_a_broken_chain,
        None,
    ),
    "numbers compared and ids not": (
        "a store that goes back",
        None,
        (COMPARISON, "IF newest.batch <> known THEN"),
    ),
    "a lost commit that is looked for": ("a lost answer", looked_for, None),
    "an instance given up by a stale image": ("a heartbeat", heartbeats_not_heard, None),
    "a floor over a transaction that is open": (
        "jobs of the user's transactions",
        floor_over_an_open_transaction,
        None,
    ),
    "a claim without a place": ("another limit", claims_without_a_place, None),
    "a batch decided as lost that was committed": ("a lost answer", decided_as_lost, None),
    "a give-back of what begins": ("what an instance runs", begun_given_back, None),
    "a head that misses a count": (
        "jobs of a session",
        None,
        ("VALUES (known + 1, new_id, new_sequence,", "VALUES (known + 1, new_id, newest.sequence,"),
    ),
    "counts that stay after a late batch": ("jobs of a session", undoing(Image, no_counts), None),
    "settings that stay after a late batch": ("another limit", undoing(Image, no_settings), None),
    "requests that stay after a late batch": ("a lock", undoing(Image, no_requests), None),
    "deltas without requests": ("a lock", requests_not_said, None),
    "the jobs of others in a new lane overlooked": (
        "a lane from which nobody has claimed yet",
        others_overlooked,
        None,
    ),
    "new jobs that stay after a late batch": ("another limit", undoing(Image, no_new_jobs), None),
    "changes that stay after a late batch": ("an end", undoing(Image, no_changed_jobs), None),
    "guessed queues that stay after a wrong guess": ("an end", no_queue_fronts, None),
    "guesses that are not compared": ("a key", not_compared_guesses, None),
}
"""By fault: the story in which it is found, what it is in the library or in the schema.

An instance is given up under the lock alone, so its guard is the image, which knows its heartbeats.
There is no floor of submissions: the fault adds one.
"""


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found_in_some_order(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    name, broken, change = BROKEN[fault]
    with exploring(
        server, namespace, STORIES[name], lambda: broken and broken(monkeypatch), change
    ) as explorer:
        with pytest.raises(Wrong) as found:
            explorer.explore()
    print(f"{fault}: {found.value}")
