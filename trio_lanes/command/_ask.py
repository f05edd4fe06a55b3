"""The commands on a store: each is one function of the store's `DurableLanes`.

They open the store with ``worker=False``, and without lanes or handlers. So inspection changes
nothing, and no command needs a living worker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from .. import UnknownLaneError, resolve_global_lane
from .._config.names import SESSION_PREFIX, is_template, template_of
from .._config.problems import verdict_on
from .._config.reasons import in_words
from ..durable import (
    DurableLanes,
    DurableState,
    DurableStatus,
    InstanceInfo,
    LaneLimit,
    LockStatistics,
    ResultGoneError,
    StoreActivity,
)
from ..durable._lanes.causes import lives
from ..durable._lanes.told import READ_OF_A_STATE, of_oldest, of_retries
from ._answer import Answer, Table, counted, cut, moment, number, shortened
from ._exits import DONE, NO, USAGE, CommandError
from ._limits import fairness, groups_table, locks_table, notes, of, quotas_table, template
from ._show import progress

JOBS_PER_CALL = 1000
"""Jobs that are read at once."""


# ---- inspection: ``of`` has the options that choose jobs, named as the arguments of the lanes


def _notes(paused: bool, limit: LaneLimit | None) -> str:
    said = notes("paused" if paused else "", () if limit is None else limit.rates)
    return ", ".join(filter(None, (said, "" if limit is None else fairness(limit))))


async def status(lanes: DurableLanes) -> Answer:
    """Show lanes with jobs and limits, what waits longest, groups, locks, quotas, and workers."""
    async with progress("counting"):
        now = await lanes.statistics()
    instances = await lanes.instances()
    limits, groups = await lanes.limits(), await lanes.groups()
    waiting = await lanes.jobs(states=[DurableState.WAITING], limit=READ_OF_A_STATE)
    parked = await lanes.jobs(states=[DurableState.PARKED], limit=READ_OF_A_STATE)
    _, oldest = await of_oldest(lanes, now, waiting, waiting, limits)
    told = [*oldest, *of_retries(now.parked, parked)]
    counts = ("waiting", "parked", "running", "dead", "unhandled")
    of_lanes = Table(
        ("lane", "running", "limit", "waiting", "parked", "dead", "unhandled", ""),
        [
            (
                name,
                number(lane.running),
                number(lane.concurrency),
                of(lane.waiting, lane.max_waiting),
                *(number(getattr(lane, what)) for what in ("parked", "dead", "unhandled")),
                _notes(lane.paused, limits.get(name)),
            )
            for name, lane in now.lanes.items()
        ],
        frozenset({*counts, "limit"}),
    )
    templates = {name: limit for name, limit in limits.items() if is_template(name)}
    document = {
        **{what: getattr(now, what) for what in counts},
        "due": now.due,
        "next_due": now.next_due,
        "sessions": now.sessions,
        "ended": now.ended,
        "store": now.store,
        "lanes": now.lanes,
        "templates": {name: one.concurrency for name, one in templates.items()},
        "limits": limits,
        "groups": groups,
        "paused": now.paused,
        "told": told,
        "locks": now.locks,
        "quotas": now.quotas,
        "instances": _with_life(instances),
    }
    workers = Table(
        ("worker", "running", "since", "handlers"),
        [
            (_process(one), number(one.running), moment(one.since), ", ".join(one.names))
            for one in instances
        ],
        frozenset({"running"}),
    )
    sessions = counted(now.sessions, "session")
    shown: list[Table | str] = [
        of_lanes,
        *(template(name, one) for name, one in templates.items()),
        *([groups_table(groups)] if groups else []),
        f"{sessions} with queued jobs",
        *map(str, told),
        *([] if now.next_due is None else [f"next due: {moment(now.next_due)}"]),
        *(
            f"ended in {name}: {', '.join(f'{n:,} {state}' for state, n in ends.items())}"
            for name, ends in now.ended.items()
        ),
        *(
            f"session:{session} is paused until {'it is resumed' if when is None else moment(when)}"
            for session, when in now.paused.items()
        ),
        *([locks_table(now.locks, instances)] if now.locks else []),
        *([quotas_table(now.quotas, instances)] if now.quotas else []),
        workers if instances else "no worker",
    ]
    return Answer(document, shown)


def _with_life(instances: Sequence[InstanceInfo]) -> list[dict[str, object]]:
    return [{**attrs.asdict(one, recurse=False), "lives": lives(one)} for one in instances]


def _process(one: InstanceInfo) -> str:
    return f"{one.pid} on {one.host}{' (gone)' if lives(one) is False else ''}"


async def instances(lanes: DurableLanes) -> Answer:
    """List the workers, with the last heartbeat of each and how its commits go."""
    found = await lanes.instances()
    columns = ("commits/s", "late", "longest wait", "batch", "image")
    table = Table(
        ("worker", "running", "since", "heartbeat", *columns, "handlers"),
        [
            (
                _process(one),
                number(one.running),
                moment(one.since),
                "" if one.lease_until == math.inf else f"{in_words(one.silent)} ago",
                *_how_commits_go(one.activity),
                ", ".join(one.names),
            )
            for one in found
        ],
        frozenset({"running", *columns}),
    )
    return Answer(_with_life(found), [table if found else "no worker"])


def _how_commits_go(said: StoreActivity | None) -> Sequence[str]:
    if said is None:
        return ("",) * 5
    rate, share, age = said.commits_a_second, said.late_share, said.image_age
    return (
        "" if rate is None else f"{rate:,.1f}",
        "" if share is None else f"{share:.0%}",
        in_words(said.longest_wait),
        number(said.batch) if said.batch else "",
        "" if age is None else in_words(age),
    )


async def jobs(
    lanes: DurableLanes, ids: Sequence[int], states: Sequence[str], limit: int, **of: Any
) -> Answer:
    """List jobs by id, or the first jobs of the store that all options fit."""
    if ids:
        return await _jobs_by_id(lanes, ids)
    await _check_name(lanes, of["name"])
    wanted = [DurableState(state) for state in states] or list(DurableState)
    found: list[DurableStatus] = []
    async with progress("reading", limit) as advance:
        while len(found) < limit:
            most = min(JOBS_PER_CALL, limit - len(found))
            page = await lanes.jobs(states=wanted, limit=most, **of)
            if not page:
                break
            found += page
            of["after"] = page[-1].id
            advance(len(page))
    more = [] if len(found) < limit else [_more(limit, of["after"])]
    return Answer(found, [_jobs_table(found), *more] if found else ["no jobs"])


def _more(limit: int, last: int) -> str:
    return f"these are {limit:,}; --after {last} shows more"


async def _jobs_by_id(lanes: DurableLanes, ids: Sequence[int]) -> Answer:
    found: list[DurableStatus] = []
    lines: list[str] = []
    for id in ids:
        try:
            found.append(await lanes.job(id).status(texts=True))
        except ResultGoneError as error:
            lines.append(str(error))
    shown: list[Table | str] = [_jobs_table(found)]
    for one in found:
        shown += [_runs_table(one)] if one.history else []
        shown += _carried(one)
    document = [{**attrs.asdict(one, recurse=False), "texts": _values(one)} for one in found]
    return Answer(document, [*shown, *lines], NO if lines else DONE)


def _values(one: DurableStatus) -> dict[str, object]:
    """What a job carries, as JSON values."""
    texts = one.texts
    assert texts is not None
    return {
        **{name: _value(getattr(texts, name)) for name in ("payload", "checkpoint", "outcome")},
        "events": [{"number": number, "event": _value(text)} for number, text in texts.events],
        "messages": [
            {"number": number, "taken": taken, "message": _value(text)}
            for number, taken, text in texts.messages
        ],
    }


def _value(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except (RecursionError, ValueError):  # nor could a worker read it
        return text


def _carried(one: DurableStatus) -> list[Table | str]:
    texts = one.texts
    assert texts is not None
    shown: list[Table | str] = [
        f"{name} of {one.id}: {cut(text)}"
        for name in ("payload", "checkpoint", "outcome")
        if (text := getattr(texts, name)) is not None
    ]
    if texts.events:
        rows = [(str(number), cut(text)) for number, text in texts.events]
        shown.append(Table((f"events of {one.id}", ""), rows))
    if texts.messages:
        shown.append(
            Table(
                (f"messages of {one.id}", "taken", ""),
                [
                    (str(number), "yes" if taken else "no", cut(text))
                    for number, taken, text in texts.messages
                ],
            )
        )
    return shown


def _runs_table(one: DurableStatus) -> Table:
    return Table(
        (f"runs of {one.id}", "began", "took", "ended", "where", ""),
        [
            (
                number(run.number),
                moment(run.started_at),
                "" if run.ended_at is None else f"{run.ended_at - run.started_at:.3g} s",
                run.how or "runs",
                f"{run.pid} on {run.host}",
                "" if run.error is None else shortened(run.error),
            )
            for run in one.history
        ],
        frozenset({"took"}),
    )


async def why(lanes: DurableLanes, ids: Sequence[int]) -> Answer:
    """Show why jobs do not go on."""
    document, lines = [], []
    for id in ids:
        try:
            status = await lanes.job(id).status()
            causes = await lanes.root_causes(id)
        except ResultGoneError as error:
            lines.append(str(error))
            continue
        has = [] if status.state is not DurableState.RUNNING else await _locks_of(lanes, id)
        locks = [{"key": lock.key, "waiting": lock.waiting} for lock in has]
        roots = [{"line": str(one), **attrs.asdict(one, recurse=False)} for one in causes]
        document.append(
            {"id": id, "state": status.state, "causes": roots, "has": locks, "waits": status.waits}
        )
        lines += why_lines(id, status.state.value, roots)
        lines += [
            f"job {id} has the lock {lock.key!r}, for which {number(lock.waiting)} wait"
            for lock in has
        ]
    return Answer(document, lines, DONE if len(document) == len(ids) else NO)


def why_lines(id: int, state: str, roots: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines for a job with the roots of its wait."""
    lines = [] if roots else [f"job {id} is {state}; nothing keeps it waiting"]
    for root in roots:
        lines.append(root["line"])
        if root["advice"] is not None:
            lines.append(f"    what would help: {root['advice']}")
    return lines


async def health(lanes: DurableLanes, standstill_after: float | None) -> Answer:
    """Show what is wrong. The exit code is for probes: 0 healthy, 1 not, 2 could not look."""
    bound = {} if standstill_after is None else {"standstill_after": standstill_after}
    found = await lanes.health(**bound)
    problems = [attrs.asdict(one) for one in found]
    return verdict(problems, found.left_out, unseen=found.unseen, looked=found.looked)


def verdict(
    problems: Sequence[Mapping[str, Any]], left_out: Sequence[str], *, unseen: int, looked: bool
) -> Answer:
    """Return the answer for a probe: 0 without problems, else 1; 2 if it could not look."""
    lines = [f"{one['text']}: {one['advice']}" for one in problems]
    if left_out or not problems:
        lines.append(verdict_on(len(problems), left_out))
    document = {
        "healthy": not problems,
        "problems": problems,
        "unseen": unseen,
        "left_out": left_out,
    }
    return Answer(document, lines, USAGE if not looked else NO if problems else DONE)


async def failures(lanes: DurableLanes, **of: Any) -> Answer:
    """Show dead and failed jobs by error, each with the traceback of its last job."""
    await _check_name(lanes, of["name"])
    async with progress("reading"):
        groups = await lanes.failures(**of)
    rows = [
        (number(one.count), one.handler, one.lane, shortened(one.error), str(one.last))
        for one in groups
    ]
    table = Table(("jobs", "handler", "lane", "error", "last"), rows, frozenset({"jobs", "last"}))
    shown: list[Table | str] = [table]
    for one in groups:
        shown += ["", f"job {one.last} of {one.handler}, in {one.lane}:"]
        shown += (one.traceback or "it has no traceback").splitlines()
    if groups.between is not None:
        first, last = map(moment, groups.between)
        shown.append(f"looked at {number(groups.looked)} only, submitted from {first} to {last}")
    return Answer(groups, shown if rows else ["no failures"])


async def _locks_of(lanes: DurableLanes, id: int) -> list[LockStatistics]:
    """Return the locks that a job has, of those that are listed."""
    locks = (await lanes.statistics()).locks
    return [lock for lock in locks if id in [one.job for one in lock.holders]]


async def dead(lanes: DurableLanes, limit: int, **of: Any) -> Answer:
    """List dead jobs, the oldest first."""
    await _check_name(lanes, of["name"])
    async with progress("reading"):
        found = await lanes.dead(limit=limit + 1, **of)
    more = [] if len(found) <= limit else [_more(limit, found[limit - 1].id)]
    del found[limit:]
    return Answer(found, [_jobs_table(found), *more] if found else ["no dead jobs"])


def _jobs_table(found: Sequence[DurableStatus]) -> Table:
    return Table(
        ("id", "job", "state", "lane", "session", "attempts", "crashes", "submitted", ""),
        [
            (
                str(one.id),
                one.name,
                one.state.value,
                one.lane,
                one.session or "",
                number(one.attempt),
                number(one.crashes),
                moment(one.submitted_at),
                _note(one),
            )
            for one in found
        ],
        frozenset({"id", "attempts", "crashes"}),
    )


def _note(one: DurableStatus) -> str:
    if one.until is not None:
        return f"{one.why} until {moment(one.until)}"
    if one.cancelling:
        return "is being cancelled"
    return "" if one.error is None else shortened(one.error)


async def check(lanes: DurableLanes, repair: bool) -> Answer:
    """Check every job for contradictions."""
    async with progress("looking at every job"):
        report = await lanes.check(repair)
        left = (await lanes.check()).problems if repair and report.problems else report.problems
    lines = [shortened(problem) for problem in report.problems]
    if repair and report.problems:
        lines.append(f"repaired {report.repaired}, {counted(len(left), 'problem')} left")
    document = {"problems": report.problems, "repaired": report.repaired, "left": left}
    return Answer(document, lines or ["all is well"], NO if left else DONE)


# ---- control


async def cancel(lanes: DurableLanes, ids: Sequence[int], reason: str | None) -> Answer:
    """Cancel jobs, also running jobs."""
    done = [id for id in ids if await lanes.cancel(id, reason)]
    return _done("cancelled", done, ids, "has ended, is dead, or is not known")


async def promote(lanes: DurableLanes, ids: Sequence[int]) -> Answer:
    """Make jobs due that are delayed, or between two attempts."""
    done = [id for id in ids if await lanes.promote(id)]
    return _done("promoted", done, ids, "is not parked, or is not known")


def _letters(verb: str, done: str, text: str) -> Callable[..., Awaitable[Answer]]:
    """Return a command on dead jobs: by id, all of the store, or those that the options choose."""

    async def command(
        lanes: DurableLanes, ids: Sequence[int], all_: bool, failed: bool, **of: Any
    ) -> Answer:
        act = getattr(lanes, verb)
        if sum((bool(ids), any(value is not None for value in of.values()), all_)) != 1:
            raise CommandError("say which: ids, or --of, --handler and --error, or --all")
        if ids:
            return _done(done, [id for id in ids if await act(id)], ids, NO_LETTER)
        await _check_name(lanes, of["name"])
        async with progress("looking for dead jobs"):
            count = await act(failed=failed, **of)
        return Answer({done: count}, [f"{done} {counted(count, 'job')}"], DONE if count else NO)

    command.__name__, command.__doc__ = verb, text
    return command


requeue: Final = _letters(
    "requeue", "requeued", "Queue dead or failed jobs again, with attempts and crashes at 0."
)
purge: Final = _letters("purge", "purged", "Forget dead or failed jobs, and their keys.")
NO_LETTER: Final = "is neither dead nor failed, or is not known"


def _done(word: str, done: Sequence[int], asked: Sequence[int], otherwise: str) -> Answer:
    left = [id for id in asked if id not in set(done)]
    lines = [f"{word} {counted(len(done), 'job')}", *(f"job {id} {otherwise}" for id in left)]
    return Answer({word: done, "left": left}, lines, NO if left or not done else DONE)


async def clear(lanes: DurableLanes, name: str, reason: str | None) -> Answer:
    """Cancel the jobs of a lane or session that have not started."""
    async with progress(f"clearing {name}"):
        count = await lanes.clear(name, reason)
    line = f"cleared {counted(count, 'job')} of {name}"
    return Answer({"cleared": count}, [line], DONE if count else NO)


async def pause(lanes: DurableLanes, name: str, seconds: float | None) -> Answer:
    """Pause a lane, the session session:KEY, or the schedule schedule:NAME."""
    if seconds is None:
        await _known(lanes.pause(name))
        return Answer({"paused": name, "seconds": None}, [f"paused {name} until it is resumed"])
    await lanes.pause_for(name, seconds)
    return Answer({"paused": name, "seconds": seconds}, [f"paused {name} for {seconds:g} s"])


async def resume(lanes: DurableLanes, name: str) -> Answer:
    """Undo a pause."""
    await _known(lanes.resume(name))
    return Answer({"resumed": name}, [f"resumed {name}"])


async def _known(act: Awaitable[None]) -> None:
    try:
        await act
    except UnknownLaneError:
        raise
    except LookupError as error:  # of a schedule
        raise CommandError(str(error)) from error


async def schedules(lanes: DurableLanes, name: str | None) -> Answer:
    """Show schedules with their next due times; of one, the next five."""
    found = [one for one in await lanes.schedules() if name in (None, one.name)]
    rows = [
        (
            one.name,
            one.job.name,
            f"every {one.every:g} s" if one.cron is None else f"{one.cron} {one.timezone}",
            "paused" if one.next is None else moment(one.next),
            "" if one.last is None else f"{moment(one.last)} job {one.last_id}",
            number(one.skipped),
        )
        for one in found
    ]
    columns = ("schedule", "handler", "times", "next", "last", "skipped")
    shown: list[Table | str] = [Table(columns, rows, frozenset({"skipped"}))]
    if name is None:
        return Answer(found, shown if found else ["no schedules"])
    if not found:
        raise CommandError(f"there is no schedule {name!r}")
    times = found[0].upcoming()
    lines = [f"next {moment(time)}" for time in times]
    return Answer({"schedule": found[0], "upcoming": times}, [*shown, *lines])


async def unschedule(lanes: DurableLanes, name: str) -> Answer:
    """Remove a schedule; its jobs stay."""
    gone = await lanes.unschedule(name)
    line = f"removed {name}" if gone else f"there is no schedule {name!r}"
    return Answer({"removed": gone}, [line], DONE if gone else NO)


async def log(lanes: DurableLanes, name: str, after: int, limit: int) -> Answer:
    """Show the records of a log."""
    records = await lanes.log(name).read(after, limit=limit)
    rows = [(str(one.number), one.author, cut(json.dumps(one.data))) for one in records]
    table = Table(("record", "by", ""), rows, frozenset({"record"}))
    more = [_more(limit, records[-1].number)] if len(records) == limit else []
    return Answer(records, [table, *more] if rows else ["no records"])


async def rules(lanes: DurableLanes, **changes: Any) -> Answer:
    """Show the rules of the store, and change them."""
    if any(value is not None for value in changes.values()):
        try:
            await lanes.configure({}, **changes)
        except ValueError as error:
            raise CommandError(str(error)) from error
    now = await lanes.rules()
    document = {
        "result_ttl": now.result_ttl,
        "max_crashes": now.max_crashes,
        "on_dead": "hold" if now.hold else "continue",
    }
    lines = [
        f"result_ttl {now.result_ttl:,g} s: how long an ended job and its key are remembered",
        f"max_crashes {number(now.max_crashes)}: how many crashes of a job alone make it dead",
        f"on_dead {document['on_dead']}: whether the session of a dead job goes on",
    ]
    return Answer(document, lines)


async def _check_name(lanes: DurableLanes, name: str | None) -> None:
    """Refuse the name of a lane that does not exist; a session need not exist."""
    if name is None or name.strip().startswith(SESSION_PREFIX):
        return
    lane, known = resolve_global_lane(name), await lanes.limits()
    if lane not in known and template_of(lane, known) is None:
        raise UnknownLaneError(lane, known)
