"""Records as arguments of the script, and its answers as records."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args

import attrs

from ... import LaneFullError, RateLimit, UnknownLaneError
from ..._config.exact import bucket_shape
from .._contract.act import Act, Question
from .._contract.errors import KeyConflictError
from .._contract.protocol import LISTED, ServedAt
from .._contract.records import (
    Cancelled,
    Claim,
    Died,
    DurableAttempt,
    DurableBlocker,
    DurableStatistics,
    DurableStatus,
    Failed,
    Finish,
    GroupLimit,
    InstanceInfo,
    JobTexts,
    LaneLimit,
    Opening,
    Postponed,
    QueuedJob,
    QuotaLevel,
    Released,
    Selection,
    Step,
    StoreRules,
    SubmittedJob,
    Succeeded,
)
from .._contract.state import DurableState
from .._rules import rates
from .._rules.engine import digest
from .._rules.history import LONGEST_ERROR, error_type, in_one_line, waits_of
from .._rules.request import Request
from ..acts import VERBS
from ..acts.inspection import statistics_of

T = TypeVar("T")

SECOND: Final = 1_000_000
"""The script's times are microseconds."""
_EXACT: Final = 2**52


def micros(seconds: float) -> str:
    """Return seconds as the script takes them: rounded up."""
    # a product that is a little above a whole number is meant to be that number
    return "inf" if seconds == math.inf else str(math.ceil(round(seconds * SECOND, 3)))


def seconds(micros: str | int | None) -> float | None:
    """Return seconds from the script's answer."""
    return None if micros is None else float(micros) / SECOND


def a_time(micros: str) -> float:
    """Return a time that is not None."""
    return float(micros) / SECOND


def number(value: float) -> str:
    """Return a number that may be infinite."""
    return "inf" if value == math.inf else str(int(value))


def optional(text: str | None) -> str:
    """Return an optional text as an argument."""
    return "" if text is None else f"+{text}"


# ---- jobs


def job_arguments(job: SubmittedJob) -> tuple[str, ...]:
    """The arguments of a submitted job."""
    return (
        job.name,
        job.payload,
        optional(job.session),
        job.lane,
        str(job.priority),
        optional(job.key),
        "" if job.key is None else f"+{digest(job.payload)}",
        micros(max(0.0, job.delay)),
        _rest(job),
        "" if job.cost is None else json.dumps(dict(job.cost)),
        "" if job.run_at is None else micros(job.run_at),
    )


def _rest(job: SubmittedJob) -> str:
    """What only the worker reads: the timeout, the retry policy, the headers, if one is given."""
    rest = [None if job.timeout == math.inf else job.timeout, job.retry, job.headers]
    return "" if rest == [None, None, None] else json.dumps(rest)


def finish_arguments(finish: Finish) -> tuple[str, ...]:
    """The arguments of the end of a run."""
    return (str(finish.id), str(finish.fence), *_outcome(finish))


def _outcome(finish: Finish) -> tuple[str, str, str, str, str, str]:
    outcome = finish.outcome
    if isinstance(outcome, Succeeded):
        return "s", outcome.result, "", "", "", ""
    if isinstance(outcome, Failed):
        return "f", outcome.error, "", "", *_failure(outcome.error)
    if isinstance(outcome, Died):
        return "d", outcome.error, "", "", *_failure(outcome.error)
    if isinstance(outcome, Postponed):
        flags = str(int(outcome.counts)), str(int(outcome.requeue))
        return "p", micros(outcome.delay), *flags, "", _short(outcome.error or "")
    if isinstance(outcome, Released):
        return "r", "", "", "", "", ""
    assert isinstance(outcome, Cancelled)
    return "c", "", "", "", "", ""


def _failure(error: str) -> tuple[str, str]:
    """The type of an error, and the error in one line."""
    return error_type(error), _short(in_one_line(error))


def _short(line: str) -> str:
    return line[:LONGEST_ERROR].encode(errors="backslashreplace").decode()


def _claim(data: Sequence[Any]) -> Claim:
    id, fence, name, payload, session, lane, attempt, crashes, rest, checkpoint = data
    timeout, retry, *more = json.loads(rest) if rest else (None, None)
    return Claim(
        id=int(id),
        fence=fence,
        name=name,
        payload=payload,
        session=session,
        lane=lane,
        attempt=attempt,
        crashes=crashes,
        timeout=math.inf if timeout is None else timeout,
        retry=retry,
        checkpoint=checkpoint,
        headers=more[0] if more else None,
    )


def step_of(answer: Sequence[Any]) -> Step:
    """Return the answer of a step."""
    claims, stale, cancels, due = answer
    pairs = iter(cancels)
    return Step(
        tuple(map(_claim, claims)),
        tuple(stale),
        tuple((int(id), fence) for id, fence in zip(pairs, pairs, strict=True)),
        seconds(due),
    )


def status_of(data: Sequence[Any]) -> DurableStatus:
    """Return the status of a job."""
    id, name, session, lane, priority, key, state, why, until, attempt, crashes = data[:11]
    instance, cancelling, error, submitted, runs, rest, seen, due = data[11:]
    timeout, *_ = json.loads(rest) if rest else (None,)
    if error is not None:
        read = json.loads(error)
        error = f"{read['type']}: {read['message']}"
    history, waits = tuple(map(_attempt, runs)), state in ("waiting", "parked")
    return DurableStatus(
        id=int(id),
        name=name,
        session=session,
        lane=lane,
        priority=priority,
        key=key,
        state=DurableState(state),
        why=why if until is not None else None,
        until=seconds(until),
        attempt=attempt,
        crashes=crashes,
        instance=instance,
        cancelling=bool(cancelling),
        error=error,
        submitted_at=a_time(submitted),
        history=history,
        waits=waits_of(
            a_time(submitted), history, seconds(due), why, a_time(seen) if waits else None
        ),
        timeout=math.inf if timeout is None else timeout,
        seen_at=a_time(seen),
    )


def _attempt(data: Sequence[Any]) -> DurableAttempt:
    number, fence, host, pid, started, ended, how, error, due, by = data
    times = a_time(started), seconds(ended)
    return DurableAttempt(number, fence, host, int(pid), *times, how, error, seconds(due), by)


def _texts(data: Sequence[Any]) -> JobTexts:
    payload, checkpoint, outcome, last, events, messages = data
    first = last - len(events) + 1
    return JobTexts(
        payload,
        checkpoint,
        outcome,
        tuple(enumerate(events, first)),
        tuple((number, bool(taken), text) for number, taken, text in messages),
    )


def _queued(data: Sequence[Any]) -> QueuedJob:
    id, name, key, state, payload, begun, age = data
    return QueuedJob(int(id), name, key, DurableState(state), payload, bool(begun), a_time(age))


def _blocker(data: Sequence[Any]) -> DurableBlocker:
    kind, lane, job, until, before = data
    return DurableBlocker(kind, lane, None if job is None else int(job), seconds(until), before)


def _selection(of: Selection) -> Iterator[str]:
    yield "" if of.id is None else str(of.id)
    yield "".join(f" {state.value} " for state in of.states)
    yield from map(optional, (of.lane, of.session, of.name, of.error))
    for time in (of.since, of.until):
        yield "" if time is None else str(round(time * SECOND))


# ---- limits


def rules_of(rules: StoreRules) -> tuple[str, str, str]:
    """Return the rules of a store, as each call has them."""
    return micros(rules.result_ttl), number(rules.max_crashes), str(int(rules.hold))


def opening_argument(opening: Opening, identity: str) -> str:
    """The argument of the verb ``open``."""
    asked = {
        "identity": identity,
        "worker": opening.worker,
        "lanes": [_lane(name, limit) for name, limit in opening.lanes.items()],
        "groups": [_group(name, group) for name, group in opening.groups.items()],
    }
    return json.dumps(asked)


def _lanes(lanes: Mapping[str, LaneLimit | int | float | None]) -> str:
    asked: list[dict[str, Any]] = []
    for name, value in lanes.items():
        if value is None:
            asked.append({"name": name, "gone": True})
        elif isinstance(value, LaneLimit):
            asked.append(_lane(name, value))
        else:
            asked.append({"name": name, **_finite("c", value)})
    return json.dumps(asked)


def _groups(groups: Mapping[str, GroupLimit] | None) -> str:
    return "" if groups is None else json.dumps([_group(*one) for one in groups.items()])


def _rules(rules: Mapping[str, Any]) -> str:
    as_text: Mapping[str, Callable[[Any], object]] = {"result_ttl": micros, "max_crashes": number}
    return json.dumps({name: as_text.get(name, bool)(value) for name, value in rules.items()})


def _finite(name: str, value: float) -> dict[str, int]:
    return {} if value == math.inf else {name: int(value)}


def _lane(name: str, limit: LaneLimit) -> dict[str, Any]:
    asked: dict[str, Any] = {"rates": rates.to_json(limit.rates), "meters": _meters(limit.rates)}
    if limit.paused_until is not None:  # JSON has no infinity
        forever = limit.paused_until == math.inf
        asked |= {"forever": True} if forever else {"paused": int(micros(limit.paused_until))}
    asked |= _finite("c", limit.concurrency) | _finite("m", limit.max_waiting)
    return {"name": name, "limit": asked}


def _group(name: str, group: GroupLimit) -> dict[str, Any]:
    return {
        "name": name,
        "members": list(group.members),
        "reserve": dict(group.reserve),
        "rates": rates.to_json(group.rates),
        "meters": _meters(group.rates),
        **_finite("c", group.concurrency),
    }


def _meters(limits: Iterable[RateLimit]) -> list[dict[str, Any]]:
    """The rate limits in whole microseconds, numbered by algorithm and unit."""
    numbers: Counter[tuple[str, str]] = Counter()
    meters = []
    for limit in limits:
        kind = limit.algorithm, limit.unit
        shape = _sliding(limit) if limit.algorithm == "sliding" else _gcra(limit)
        meters.append({"kind": kind[0], "unit": kind[1], "n": numbers[kind], **shape})
        numbers[kind] += 1
    return meters


def _per(limit: RateLimit) -> int:
    return max(1, int(micros(limit.per)))


def _sliding(limit: RateLimit) -> dict[str, int]:
    return {"most": math.floor(limit.limit), "per": _per(limit)}


def _gcra(limit: RateLimit) -> dict[str, int]:
    burst, rate = bucket_shape(limit.limit, _per(limit), limit.burst)
    interval = 1 / rate
    num = interval.numerator * burst.denominator
    den = interval.denominator * burst.denominator
    if num * den > _EXACT:  # a start is at most a microsecond late
        num, den = math.ceil(interval), 1
    return {"num": num, "den": den, "burst": math.floor(burst * num)}


def _lanes_of(answer: Sequence[Any]) -> dict[str, LaneLimit]:
    """Return lanes from the script's answer."""
    return {
        name: LaneLimit(
            _number(most),
            _number(waiting),
            seconds(paused),
            rates.from_json(rate),
            bool(proposed),
        )
        for name, most, waiting, paused, proposed, rate in answer
    }


def _groups_of(answer: Sequence[Any]) -> dict[str, GroupLimit]:
    """Return groups from the script's answer."""
    return {
        name: GroupLimit(
            tuple(members), _number(most), dict(pairs_of(reserve)), rates.from_json(rate)
        )
        for name, members, most, reserve, rate in answer
    }


def _number(data: str | None) -> int | float:
    return math.inf if data is None else int(data)


def pairs_of(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a flat sequence."""
    one = iter(flat)
    return zip(one, one, strict=True)


# ---- inspection


def _statistics(answer: Sequence[Any]) -> DurableStatistics:
    identity, counts, sessions, by_lane, names, lanes, time, pauses, requests, quotas = answer
    return statistics_of(
        a_time(time),
        _lanes_of(lanes),
        [(lane, state, name, number) for state, lane, name, number in counts],
        names,
        dict(pairs_of(by_lane)),
        {session: a_time(until) for session, until in pairs_of(pauses)},
        sorted(map(_request, requests), key=attrgetter("id")),
        dict(sorted(map(_levels, quotas))[:LISTED]),
        sessions=sessions,
        store=identity,
    )


def _levels(data: Sequence[Any]) -> tuple[str, tuple[QuotaLevel, ...]]:
    name, limits, levels = data
    return name, tuple(
        QuotaLevel(limit, int(used), seconds(full))
        for limit, (used, full) in zip(rates.from_json(limits), levels, strict=True)
    )


def _request(data: Sequence[Any]) -> Request:
    id, for_quota, name, instance, job, since, served = data
    line = f"{'quota' if for_quota else 'lock'} {name}"
    return Request(
        id, line, instance, "", 0.0 if served else None, int(job) if job else None, a_time(since)
    )


def _instances(answer: Sequence[Any]) -> list[InstanceInfo]:
    """Return the instances of a store."""
    return [
        InstanceInfo(
            id,
            host,
            int(pid),
            a_time(since),
            a_time(until),
            tuple(names),
            running,
            dict(pairs_of(lanes)),
            bool(alive),
        )
        for id, host, pid, since, until, names, running, lanes, alive in answer
    ]


# ---- acts and questions: an encoding for each type of field, a decoding for each type of answer

_ENCODERS: Final[Mapping[str, Callable[[Any], Iterable[str]]]] = {
    "str": lambda value: (value,),
    "str | None": lambda value: (optional(value),),
    "int": lambda value: (str(value),),
    "int | None": lambda value: ("" if value is None else str(value),),
    "bool": lambda value: (str(int(value)),),
    "float": lambda value: (micros(value),),
    "ServedAt": lambda value: (f"{value:.0f}",),
    "Selection": _selection,
    "Sequence[SubmittedJob]": lambda value: chain.from_iterable(map(job_arguments, value)),
    "Sequence[RateLimit]": lambda value: (rates.to_json(value), json.dumps(_meters(value))),
    "Mapping[int, str]": lambda value: chain.from_iterable((str(n), s) for n, s in value.items()),
    "Mapping[str, int]": lambda value: (json.dumps(dict(value)),),
    "Mapping[str, LaneLimit | int | float | None]": lambda value: (_lanes(value),),
    "Mapping[str, GroupLimit] | None": lambda value: (_groups(value),),
    "Mapping[str, Any]": lambda value: (_rules(value),),
}


_ENCODINGS: Final = {
    kind: [(field.name, _ENCODERS[str(field.type)]) for field in attrs.fields(kind)]
    for kind in VERBS.values()
}


def words_of(asked: Act[Any] | Question[Any]) -> list[str]:
    """Return the fields of an act or question as words of the script."""
    encodings = _ENCODINGS[type(asked)]
    return [word for name, encode in encodings for word in encode(getattr(asked, name))]


def _status_and_texts(answer: Sequence[Any]) -> DurableStatus | None:
    data, *carried = answer
    if data is None:
        return None
    status = status_of(data)
    return attrs.evolve(status, texts=_texts(carried[0])) if carried else status


def _request_made(answer: Sequence[Any]) -> tuple[int, ServedAt | None] | None:
    return None if answer == [None] else (int(answer[0]), float(answer[1]) or None)


def _rules_of(answer: Sequence[Any]) -> StoreRules:
    result_ttl, max_crashes, hold = answer
    most = float(max_crashes)
    return StoreRules(a_time(result_ttl), most if most == math.inf else int(most), bool(hold))


_ANSWERS: Final[Mapping[Any, Callable[[list[Any]], Any]]] = {
    type(None): lambda answer: None,
    bool: lambda answer: bool(answer[0]),
    bool | None: lambda answer: None if answer[0] is None else bool(answer[0]),
    int | None: lambda answer: answer[0],
    tuple[int, ...]: lambda answer: tuple(map(int, answer)),
    tuple[int, ServedAt | None] | None: _request_made,
    tuple[int, int] | str: lambda answer: tuple(map(int, answer)) if answer[1:] else answer[0],
    list[tuple[int, str, str]]: lambda answer: list(
        zip(answer[::3], answer[1::3], answer[2::3], strict=True)
    ),
    Mapping[str, LaneLimit]: _lanes_of,
    Mapping[str, GroupLimit]: _groups_of,
    StoreRules: _rules_of,
    list[InstanceInfo]: _instances,
    list[QueuedJob]: lambda answer: list(map(_queued, answer)),
    DurableStatus | None: _status_and_texts,
    tuple[DurableBlocker, ...] | None: lambda answer: (
        None if answer[0] is None else tuple(map(_blocker, answer[0]))
    ),
    DurableStatistics: _statistics,
}


_DECODINGS: Final = {
    kind: _ANSWERS.get(get_args(kind.__orig_bases__[0])[0])  # None: it has answers in pages
    for kind in VERBS.values()
}


def answer_to(asked: Act[T] | Question[T], answer: list[Any]) -> T:
    """Return the script's answer to an act or question."""
    decode = _DECODINGS[type(asked)]
    assert decode is not None
    read: T = decode(answer)
    return read


# ---- refusals


def refusal(answer: Sequence[Any]) -> Exception:
    """Return the error of an act that was refused."""
    kind, *about = answer
    if kind == "lane":
        lane, *known = about
        return UnknownLaneError(lane, known)
    if kind == "key":
        key, id, field = about
        return KeyConflictError(key, int(id), field)
    if kind == "full":
        lane, most = about
        return LaneFullError(lane, most)
    if kind == "unit":
        unit, lane, *counted = about
        known_units = ", ".join(map(repr, sorted(set(counted)))) or "none"
        return ValueError(
            f"cost names {unit!r}, which no rate of lane {lane!r} or its group counts "
            f"(counted: {known_units})"
        )
    return ValueError(_CONFIGURE[kind].format(*about))


_CONFIGURE: Final = {
    "no member": "group {0!r} has the member {1!r}, which is not a lane",
    "two groups": "lane {0!r} is in two groups: {1!r}, {2!r}",
    "used": "lane {0!r} cannot be removed: it has {1} jobs; clear the lane, purge its dead "
    "jobs, and wait for the running jobs first",
}
