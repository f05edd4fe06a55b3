"""What is played over each store in every order: stories, and faults that are found in some.

A store says how far it bounds each story, and in which of them a fault is found.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import pytest

from trio_lanes.durable import LaneLimit
from trio_lanes.durable._rules.claims import Claims
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable.acts.orders import Clear, Configure
from trio_lanes.durable.acts.runs import Compare

from .orders import Beat, Claim, Compared, Job, Order, Story

SMALL = {"main": LaneLimit(9), "small": LaneLimit(9, max_waiting=1)}
RUNS: list[Any] = [[[Job("a0", "s")], [Claim()]], []]
"""The first instance runs a job."""
TWO = [[[Job("a1", "s")], [Claim()]], [[Job("b1", "s")], [Claim()]]]
STORIES = {
    "jobs of a session": Story(
        [
            [[Job("a1", "s")], [Claim()]],
            [[Job("b1", "s")], [Claim()], [Claim(ends=True)]],
        ],
    ),
    "a key": Story([[[Job("k", key="k")], [Claim()]], [[Job("k", key="k")]]]),
    "a full lane": Story(
        [
            [[Job("a1"), Job("a2", lane="small")], [Claim(2)]],
            [[Job("b1", lane="small")], [Claim(2)]],
        ],
        lanes=SMALL,
    ),
    "an end": Story([[[Claim(ends=True)]], [[Job("b1", "s")]]], before=RUNS, faults=1),
    "a lost answer": Story([[[Job("a1", "s")], [Claim()]], [[Job("b1")]]], faults=1),
    "a lost refusal": Story(
        [[[Job("a1"), Job("a2", lane="small")]], [[Claim(2)]]],
        before=[[[Job("a0", lane="small")]], []],
        lanes=SMALL,
        faults=1,
    ),
    "a lease": Story([[[Claim(ends=True)]], [[Beat()], [Claim()]]], before=RUNS, time=2),
    "a death": Story(
        [[[Claim(ends=True)]], [[Beat()], [Claim(ends=True)]]],
        before=RUNS,
        faults=1,
        kinds=("dies before it", "dies after it"),
    ),
    "a heartbeat": Story([[[Beat()]], [[Beat()], [Beat()]]], before=RUNS, time=2),
    "what an instance runs": Story(
        [[[Claim(ends=True), Compared()], [Claim(ends=True)]], [[Job("b1", "s")], [Beat()]]],
        before=[[[Job("a0", "s"), Job("a1", "s")], [Claim()]], []],
    ),
    "an order to clear": Story(
        [[[Order(Clear(None, "s", '{"reason": "no"}'))]], [[Job("b1", "s")], [Claim()]]],
        before=[[[Job("a0", "s"), Job("a1", "s")]], []],
    ),
    "another limit": Story(
        [[[Order(Configure({"main": 2}, None, {}))], [Claim()]], [[Job("b1")], [Claim(2)]]],
        before=[[[Job("a0")]], []],
    ),
    "a store that goes back": Story([[[Job("a1")]], [[Job("b1", "s")], [Claim()]]], back=True),
    "three instances": Story([[[Job("a1", "s")]], [[Job("b1", "s")], [Claim()]], [[Claim()]]]),
}


def bounded(bounds: Mapping[str, Mapping[str, Any]]) -> dict[str, Story]:
    """Return all stories that are told of each store, with its bounds."""
    assert bounds.keys() == STORIES.keys()
    return {name: attrs.evolve(STORIES[name], **bounds[name]) for name in bounds}


each_more_or_less = pytest.mark.parametrize(
    ("more", "hints"),
    [
        (0, None),
        pytest.param(1, None, marks=pytest.mark.thorough),
        pytest.param(1, "at once", marks=pytest.mark.thorough),
    ],
)


def with_more(story: Story, more: int, hints: Any) -> Story:
    """Return a story with so many switches more, and with other hints unless these are None."""
    return attrs.evolve(story, switches=story.switches + more, hints=hints or story.hints)


# ---- what is found

Broken: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def refusals_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "keep_refusal", lambda *_: None)


def claims_without_a_place(patch: pytest.MonkeyPatch) -> None:
    take = Claims.take
    patch.setattr(Claims, "take", lambda claims, me, room: take(claims, me, room + (room > 0)))


def begun_given_back(patch: pytest.MonkeyPatch) -> None:
    apply = Compare.apply
    patch.setattr(Compare, "apply", lambda act, of: apply(attrs.evolve(act, claimed_to=2**53), of))


def undoing(image: type, before: Callable[[Any], None]) -> Broken:
    def broken(patch: pytest.MonkeyPatch) -> None:
        undo = image.undo  # type: ignore[attr-defined]

        def undo_less(tables: Any) -> None:
            before(tables)
            undo(tables)

        patch.setattr(image, "undo", undo_less)

    return broken


def no_settings(tables: Any) -> None:
    tables._settings_before.clear()


def no_new_jobs(tables: Any) -> None:
    for id in [id for id, (_, row, *_) in tables._before.items() if row is None]:
        del tables._before[id]


def no_changed_jobs(tables: Any) -> None:
    for id in [id for id, (_, row, *_) in tables._before.items() if row is not None]:
        del tables._before[id]
