"""Every order of the trips of two and three instances, with faults: all promises hold in each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import attrs
import pytest

from tests.durable.orders import Beat, Claim, Compared, Job, Order, Story, Wrong
from trio_lanes.durable import LaneLimit
from trio_lanes.durable._postgres import tables as module
from trio_lanes.durable._postgres.delta import Changes
from trio_lanes.durable._postgres.image import HEAD, Image
from trio_lanes.durable._postgres.tables import PostgresTables
from trio_lanes.durable._rules.claims import Claims
from trio_lanes.durable._rules.counts import Counts
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable.acts.orders import Clear, Configure
from trio_lanes.durable.acts.runs import Compare

from .orders import Explorer, Lock, Sql, Unlock
from .server import Server
from .test_image import compare_at_rest

pytestmark = [pytest.mark.real_processes, pytest.mark.slow]

SMALL = {"main": LaneLimit(9), "small": LaneLimit(9, max_waiting=1)}
RUNS: list[Any] = [[[Job("a0", "s")], [Claim()]], []]
"""The first instance runs a job."""
CANCELLED = '{"reason": "no"}'
STORIES = {
    "jobs of a session": Story(
        [
            [[Job("a1", "s")], [Claim()]],
            [[Job("b1", "s")], [Claim()], [Claim(ends=True)]],
        ],
        switches=2,
    ),
    "under the lock": Story(
        [[[Job("a1", "s")], [Claim()]], [[Job("b1", "s")], [Claim()]]], late=1, switches=3
    ),
    "faults under the lock": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")], [Claim()]]], late=1, faults=1, switches=0
    ),
    "notices that come later": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")], [Claim()]]],
        hints="later",
        switches=1,
    ),
    "a key": Story([[[Job("k", key="k")], [Claim()]], [[Job("k", key="k")]]]),
    "a full lane": Story(
        [
            [[Job("a1"), Job("a2", lane="small")], [Claim(2)]],
            [[Job("b1", lane="small")], [Claim(2)]],
        ],
        lanes=SMALL,
        switches=2,
    ),
    "an end": Story([[[Claim(ends=True)]], [[Job("b1", "s")]]], before=RUNS, faults=1, switches=1),
    "a lost answer": Story([[[Job("a1", "s")], [Claim()]], [[Job("b1")]]], faults=1, switches=1),
    "a lost refusal": Story(
        [[[Job("a1"), Job("a2", lane="small")]], [[Claim(2)]]],
        before=[[[Job("a0", lane="small")]], []],
        lanes=SMALL,
        faults=1,
    ),
    "a lease": Story(
        [[[Claim(ends=True)]], [[Beat()], [Claim()]]], before=RUNS, time=2, switches=1
    ),
    "a death": Story(
        [[[Claim(ends=True)]], [[Beat()], [Claim(ends=True)]]],
        before=RUNS,
        faults=1,
        kinds=("dies before it", "dies after it"),
        switches=1,
    ),
    "a heartbeat": Story([[[Beat()]], [[Beat()], [Beat()]]], before=RUNS, time=2, switches=2),
    "what an instance runs": Story(
        [[[Claim(ends=True), Compared()], [Claim(ends=True)]], [[Job("b1", "s")], [Beat()]]],
        before=[[[Job("a0", "s"), Job("a1", "s")], [Claim()]], []],
        switches=2,
    ),
    "an order to clear": Story(
        [[[Order(Clear(None, "s", CANCELLED))]], [[Job("b1", "s")], [Claim()]]],
        before=[[[Job("a0", "s"), Job("a1", "s")]], []],
    ),
    "another limit": Story(
        [[[Order(Configure({"main": 2}, None, {}))], [Claim()]], [[Job("b1")], [Claim(2)]]],
        before=[[[Job("a0")]], []],
        switches=2,
    ),
    "a server that goes back": Story(
        [[[Job("a1")]], [[Job("b1", "s")], [Claim()]]], back=True, switches=2
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
    "three instances": Story(
        [[[Job("a1", "s")]], [[Job("b1", "s")], [Claim()]], [[Claim()]]], switches=1
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
@pytest.mark.parametrize(
    ("more", "hints"),
    [
        (0, None),
        pytest.param(1, None, marks=pytest.mark.thorough),
        pytest.param(1, "at once", marks=pytest.mark.thorough),
    ],
)
def test_in_every_order_of_trips_and_faults_a_story_keeps_all_promises(
    server: Server, namespace: str, name: str, more: int, hints: Any
) -> None:
    story = STORIES[name]
    story = attrs.evolve(story, switches=story.switches + more, hints=hints or story.hints)
    with exploring(server, namespace, story) as explorer:
        orders = explorer.explore()
    print(f"{name}: {orders} orders")
    assert orders > 5


# ---- what is found

Broken: TypeAlias = Callable[[pytest.MonkeyPatch], None]

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


def refusals_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "keep_refusal", lambda *_: None)


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


def claims_without_a_place(patch: pytest.MonkeyPatch) -> None:
    take = Claims.take
    patch.setattr(Claims, "take", lambda claims, me, room: take(claims, me, room + (room > 0)))


def decided_as_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PostgresTables, "answer", lambda *_: None)


def begun_given_back(patch: pytest.MonkeyPatch) -> None:
    apply = Compare.apply
    patch.setattr(Compare, "apply", lambda act, of: apply(attrs.evolve(act, claimed_to=2**53), of))


def heartbeats_not_heard(patch: pytest.MonkeyPatch) -> None:
    take = Image._take

    def take_others(tables: Any, delta: Any) -> None:
        for key in [key for key in delta.settings if key[0] == "instance"]:
            del delta.settings[key]
        take(tables, delta)

    patch.setattr(Image, "_take", take_others)


def undoing(before: Callable[[Any], None]) -> Broken:
    def broken(patch: pytest.MonkeyPatch) -> None:
        undo = Image.undo

        def undo_less(tables: Any) -> None:
            before(tables)
            undo(tables)

        patch.setattr(Image, "undo", undo_less)

    return broken


def no_counts(tables: Any) -> None:
    tables._cache.count()
    tables._cache.uncounted.clear()
    tables._changes.counts.clear()


def no_settings(tables: Any) -> None:
    tables._settings_before.clear()


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


def no_new_jobs(tables: Any) -> None:
    for id in [id for id, (_, row) in tables._before.items() if row is None]:
        del tables._before[id]


def no_changed_jobs(tables: Any) -> None:
    for id in [id for id, (_, row) in tables._before.items() if row is not None]:
        del tables._before[id]


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
        "a server that goes back",
        kept_over_a_broken_chain,
        None,
    ),
    "numbers compared and ids not": (
        "a server that goes back",
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
    "counts that stay after a late batch": ("jobs of a session", undoing(no_counts), None),
    "settings that stay after a late batch": ("another limit", undoing(no_settings), None),
    "requests that stay after a late batch": ("a lock", undoing(no_requests), None),
    "deltas without requests": ("a lock", requests_not_said, None),
    "the jobs of others in a new lane overlooked": (
        "a lane from which nobody has claimed yet",
        others_overlooked,
        None,
    ),
    "new jobs that stay after a late batch": ("another limit", undoing(no_new_jobs), None),
    "changes that stay after a late batch": ("an end", undoing(no_changed_jobs), None),
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
