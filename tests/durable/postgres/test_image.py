"""Caches that deltas have brought up to date, against the tables."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from tests.durable.conformance.twins import compare_stores
from trio_lanes.durable import PostgresStore, open_durable_lanes
from trio_lanes.durable._postgres.image import BEHIND, Image
from trio_lanes.durable._rules.counts import Counts
from trio_lanes.durable._rules.running import Running
from trio_lanes.durable._sql.list_front import ListFront
from trio_lanes.durable._sql.rows import COLUMNS
from trio_lanes.durable._sql.small_tables import SETTINGS
from trio_lanes.durable._sql.tables import DUE, SPECIAL, SUSPECTED
from trio_lanes.durable._wire.codec import decode
from trio_lanes.durable.testing import Life, simulate

from . import in_loop
from .server import Server

pytestmark = pytest.mark.real_processes


def _cached(front: ListFront) -> list[int]:
    return [job.id for place, job in front._entries if front._place_of(job) == place]


def _shown(running: Running) -> Any:
    holding = {lane: ids for lane, ids in running._holding.items() if ids}
    not_lent = {instance: ids for instance, ids in running._not_lent.items() if ids}
    return holding, not_lent, set(running._special)


def compare(tables: Any) -> None:
    """Compare the cache with the tables, inside a transaction."""
    cache, rows = tables._cache, tables._rows
    if cache.counts is not None:
        true = Counts(tables._live_counts().items())
        assert cache.counts.all() == true.all()
        assert cache.counts.waiting == true.waiting
        assert {k: n for k, n in cache.counts.bound.items() if n} == {
            k: n for k, n in true.bound.items() if n
        }
    if cache.runs is not None:
        fresh = Running(tables._execute(tables._sets()), rows.select(SPECIAL))
        assert _shown(cache.runs) == _shown(fresh)
    if cache.suspected is not None:
        assert set(cache.suspected) == {lane for (lane,) in tables._execute(SUSPECTED)}
    (due,) = tables._execute(DUE).fetchone()
    if due is not None and cache.parked_until is not None:
        assert cache.parked_until <= due
    settings: dict[str, dict[str, Any]] = {}
    for kind, name, data in tables._execute(SETTINGS):
        settings.setdefault(kind, {})[name] = decode(data)
    assert {kind: of for kind, of in tables._settings.items() if of} == settings
    for meter, marks in tables._marks.items():
        found = tables._execute(
            "SELECT time, starts FROM main.marks WHERE [meter] = :meter ORDER BY number",
            {"meter": meter},
        )
        assert list(map(tuple, marks)) == list(found)
    known = {id: job for id in [*rows._known._references] if (job := rows.known(id)) is not None}
    found = tables._execute(
        f"SELECT {', '.join(COLUMNS)} FROM main.jobs WHERE id = ANY(%s)", ([*known],)
    ).fetchall()
    assert {row[0] for row in found} == set(known)
    for row in found:
        job = known[row[0]]
        assert [getattr(job, column) for column in COLUMNS] == [
            job.state.__class__(value) if column == "state" else value
            for column, value in zip(COLUMNS, row, strict=True)
        ]
    for session, front in cache.queues.items():
        where = "[session] = :session AND place IS NOT NULL ORDER BY place"
        _same(front, rows.select(where, {"session": session}))
    for (lane, priority, name, ring), front in cache.lists.items():
        where = (
            "[lane] = :lane AND priority = :priority AND [name] = :name AND [ring] = :ring"
            " AND ready IS NOT NULL AND shelf = 0 ORDER BY ready"
        )
        of = {"lane": lane, "priority": priority, "name": name, "ring": ring}
        _same(front, rows.select(where, of))


def _same(front: ListFront, jobs: list[Any]) -> None:
    cached, true = _cached(front), [job.id for job in jobs]
    assert cached == true[: len(cached)]
    assert cached == true or not front.complete


@pytest.fixture
def caught_up(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compare after each look at deltas; note whether they brought the cache up to date."""
    looks: list[bool] = []
    catch_up: Callable[..., bool] = Image._catch_up

    def checked(tables: Any, behind: Any, version: int) -> bool:
        before = tables._version
        done = catch_up(tables, behind, version)
        if before not in (None, version):
            looks.append(done)
        if done and before != version:
            compare(tables)
        return done

    monkeypatch.setattr(Image, "_catch_up", checked)
    return looks


@pytest.fixture
def lives(server: Server) -> Iterator[in_loop.Life]:
    lives = in_loop.Life(server.dsn())
    yield lives
    lives.close()


@pytest.mark.seeds(4)
def test_a_cache_that_deltas_brought_up_to_date_has_what_the_tables_have(
    lives: in_loop.Life, caught_up: list[bool], seed: int
) -> None:
    with lives.in_loop():
        assert simulate(Life(seed), lives.open) == []
    assert caught_up.count(True) > 20
