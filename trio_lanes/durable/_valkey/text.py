"""Records as arguments of the script, and its answers as records."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args

import attrs

from ... import LaneFullError, RateLimit, UnknownLaneError
from ..._config.exact import bucket_shape, exact
from .._contract.act import Act, Question
from .._contract.amounts import to_data
from .._contract.errors import BudgetSpentError, KeyConflictError, StoreUnavailableError
from .._contract.protocol import NAMES_LISTED, ServedAt
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
    HeldSnapshot,
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
    is_budget,
    left_of,
)
from .._contract.state import DurableState
from .._options.schedule import DurableSchedule
from .._rules import rates
from .._rules.budget import misfit
from .._rules.engine import digest
from .._rules.history import LONGEST_ERROR, error_type, in_one_line
from .._rules.job_record import JobRecord
from .._rules.lane_limits import configured
from .._rules.request import Request
from .._wire.codec import decode, encode
from ..acts import VERBS
from ..acts.inspection import next_due_of, statistics_of, status_from

T = TypeVar("T")

SECOND: Final = 1_000_000
"""The script's times are microseconds."""
_EXACT: Final = 2**52


to_json: Final = partial(json.dumps, ensure_ascii=False)
"""Return the JSON text of a value. The script reads `Infinity`, too."""


def _whole(seconds: float) -> int | float:
    # a product that is a little above a whole number is meant to be that number
    return seconds if seconds == math.inf else math.ceil(round(min(seconds, 1e300) * SECOND, 3))


def micros(seconds: float) -> str:
    """Return seconds as the script takes them: rounded up."""
    return str(_whole(seconds))


def seconds(micros: str | int | None) -> float | None:
    """Return seconds from the script's answer."""
    return None if micros is None else float(micros) / SECOND


def a_time(micros: str) -> float:
    """Return a time that is not None."""
    return float(micros) / SECOND


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
        "" if job.cost is None else json.dumps(to_data(job.cost)),
        "" if job.run_at is None else micros(job.run_at),
        _more(job),
    )


def _more(job: SubmittedJob) -> str:
    """What few jobs have: JSON, of the fields that are given."""
    more: dict[str, Any] = {}
    if job.key_after == "failure":
        more["anew"] = True
    if job.owner is not None:
        more["owner"] = job.owner
    if job.expires is not None:
        more["expires"] = _whole(job.expires)
    if job.coalesce is not None:
        asked = job.coalesce
        more["coalesce"] = asked.key
        more["latest"], more["drops"] = asked.keep == "latest", asked.while_running == "drop"
        if asked.max_wait != math.inf:
            more["max_wait"] = _whole(asked.max_wait)
    return to_json(more) if more else ""


def _rest(job: SubmittedJob) -> str:
    """What only the worker reads: the timeout, the retry policy, the headers, if one is given."""
    rest = [None if job.timeout == math.inf else job.timeout, job.retry, job.headers]
    return "" if rest == [None, None, None] else json.dumps(rest)


def _rest_of(text: str | None) -> tuple[float, str | None, str | None]:
    timeout, retry, headers = json.loads(text) if text else (None, None, None)
    return math.inf if timeout is None else timeout, retry, headers


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
    timeout, retry, headers = _rest_of(rest)
    return Claim(
        id=int(id),
        fence=fence,
        name=name,
        payload=payload,
        session=session,
        lane=lane,
        attempt=attempt,
        crashes=crashes,
        timeout=timeout,
        retry=retry,
        checkpoint=checkpoint,
        headers=headers,
    )


def step_of(answer: Sequence[Any]) -> Step:
    """Return the answer of a step."""
    claims, stale, cancels, due, fires = answer
    pairs = iter(cancels)
    return Step(
        tuple(map(_claim, claims)),
        tuple(stale),
        tuple((int(id), fence) for id, fence in zip(pairs, pairs, strict=True)),
        seconds(due),
        seconds(fires),
    )


def status_of(answer: str) -> DurableStatus:
    """Return the status of a job, of whose record the script gives the JSON text."""
    read = json.loads(answer)
    data, now = read["job"], a_time(read["now"])
    job = _made(JobRecord, {"session": None, "payload": "", "timeout": "inf", **data})
    job.outcome = read.get("outcome")
    job.timeout, *_ = _rest_of(data.get("rest"))
    flat = iter(read["holds"])
    holds = list(zip(map(a_time, flat), flat, strict=True))
    return status_from(job, now, holds, tuple(map(_attempt, data.get("runs", ()))))


def _attempt(data: Sequence[Any]) -> DurableAttempt:
    number, fence, host, pid, started, ended, how, error, *due = data
    times = a_time(started), a_time(ended) if ended else None
    run = int(number), int(fence), host, int(pid), *times, how or None, error or None
    return DurableAttempt(*run, a_time(due[0]), due[1]) if due else DurableAttempt(*run)


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


def _selection(of: Selection) -> str:
    times = {name: getattr(of, name) for name in ("since", "until")}
    given = {
        **{name: getattr(of, name) for name in ("id", "lane", "session", "name", "error")},
        **{name: None if time is None else round(time * SECOND) for name, time in times.items()},
        "states": {state.value: True for state in of.states},
    }
    return to_json({name: value for name, value in given.items() if value is not None})


# ---- limits


def rules_of(rules: StoreRules) -> str:
    """Return the rules of a store, as each call has them."""
    return _rules(attrs.asdict(rules))


def _rules(rules: Mapping[str, Any]) -> str:
    as_number: Mapping[str, Callable[[Any], object]] = {"result_ttl": _whole, "hold": bool}
    return to_json({name: as_number.get(name, float)(value) for name, value in rules.items()})


def opening_argument(opening: Opening, identity: str) -> str:
    """The argument of the verb ``open``."""
    asked = {
        "identity": identity,
        "worker": opening.worker,
        "lanes": [{"name": name, "limit": _lane(limit)} for name, limit in opening.lanes.items()],
        "groups": [_group(name, group) for name, group in opening.groups.items()],
    }
    return to_json(asked)


def _lanes(lanes: Mapping[str, LaneLimit | int | float | None]) -> str:
    asked: list[dict[str, Any]] = []
    for name, value in lanes.items():
        if value is None:
            asked.append({"name": name, "gone": True})
        elif isinstance(value, LaneLimit):
            asked.append({"name": name, "limit": _lane(value)})
        else:
            asked.append({"name": name, "concurrency": value})
    return to_json(asked)


def _groups(groups: Mapping[str, GroupLimit] | None) -> str:
    return "" if groups is None else to_json([_group(*one) for one in groups.items()])


def _lane(limit: LaneLimit) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "concurrency": limit.concurrency,
        "max_waiting": limit.max_waiting,
        "rates": rates.to_json(limit.rates),
        "meters": _meters(limit.rates),
    }
    if limit.fair:
        weights = {owner: float(limit.weights[owner]) for owner in sorted(limit.weights)}
        asked |= {"fair": True, "weights": to_json(weights), "pulls": weights}
    if limit.aging < math.inf:
        asked |= {"aging": repr(limit.aging), "ages": _whole(limit.aging)}
    if limit.paused_until is not None:
        asked["paused_until"] = _whole(limit.paused_until)
    return asked


def _group(name: str, group: GroupLimit) -> dict[str, Any]:
    return {
        "name": name,
        "members": group.members,
        "concurrency": group.concurrency,
        "reserve": dict(group.reserve),
        "rates": rates.to_json(group.rates),
        "meters": _meters(group.rates),
    }


def _meters(limits: Sequence[RateLimit], *, of_quota: bool = False) -> list[dict[str, Any]]:
    """The rate limits in whole microseconds, numbered by algorithm and unit."""
    numbers: Counter[tuple[str, str]] = Counter()
    meters = []
    beside = rates.noted_beside(tuple(limits)) if of_quota else ()
    for place, limit in enumerate((*limits, *beside)):
        kind, scale = rates.kind_of(limit, of_quota=of_quota)
        shape = _SHAPES[limit.algorithm](limit, scale)
        if place >= len(limits):
            shape |= {"notes": True, "budget": False}
        number = numbers[kind, limit.unit]
        meters.append({"kind": kind, "unit": limit.unit, "n": number, "scale": scale, **shape})
        numbers[kind, limit.unit] += 1
    return meters


def _meters_of_quota(limits: Sequence[RateLimit]) -> str:
    return to_json(_meters(limits, of_quota=True))


def _per(limit: RateLimit) -> int:
    return max(1, int(_whole(limit.longest)))


def _sliding(limit: RateLimit, scale: int) -> dict[str, Any]:
    budget = {"budget": True} if is_budget(limit) else {}
    return {"most": math.floor(exact(limit.limit) * scale), "per": _per(limit), **budget}


def _gcra(limit: RateLimit, scale: int) -> dict[str, int]:
    burst, rate = bucket_shape(limit.limit, _per(limit), limit.burst)
    burst, interval = burst * scale, 1 / (rate * scale)
    num = interval.numerator * burst.denominator
    den = interval.denominator * burst.denominator
    if num * den > _EXACT:  # a start of one is at most a microsecond late
        num, den = math.ceil(interval * scale), scale
    return {"num": num, "den": den, "burst": math.floor(burst * num), "per": _per(limit)}


def _calendar(limit: RateLimit, scale: int) -> dict[str, Any]:
    from ..._limits.calendar import utc_offsets  # a limit of this kind loads it anyway

    most = math.floor(exact(limit.limit) * scale)
    zone = utc_offsets(limit.timezone)
    return {"most": most, "per": limit.per, "zone": zone, "budget": True}


_SHAPES: Final[Mapping[str, Callable[[RateLimit, int], dict[str, Any]]]] = {
    "sliding": _sliding,
    "gcra": _gcra,
    "calendar": _calendar,
}


def _schedule_words(schedule: DurableSchedule) -> tuple[str, ...]:
    job, due = schedule.job, schedule.next
    cost = "" if job.cost is None else to_json(to_data(job.cost))
    assert due is not None
    return (
        *(schedule.name, job.lane, cost, to_json(schedule.times)),
        *(micros(due), encode(attrs.evolve(schedule, next=None))),
    )


def _schedules(answer: Sequence[Any]) -> tuple[float, list[DurableSchedule]]:
    now, data = answer
    return a_time(now), [
        attrs.evolve(
            decode(one["data"]),
            id=int(one["id"]),
            skipped=int(one["skipped"]),
            version=int(one.get("version", 0)),
            skipped_in_row=int(one.get("in_row", 0)),
            refused=one.get("refused"),
            **{field: a_time(one[field]) for field in ("next", "last") if field in one},
            last_id=int(one["last_id"]) if "last_id" in one else None,
        )
        for one in json.loads(data)
    ]


def pairs_of(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a flat sequence."""
    one = iter(flat)
    return zip(one, one, strict=True)


# ---- records that the script gives as JSON, by the names of their fields; numbers are texts there


def _number(text: str) -> int | float:
    return math.inf if text == "inf" else int(text)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int,
    "int | None": int,
    "int | float": _number,
    "float": a_time,
    "float | None": a_time,
    "Seconds": float,
    "DurableState": DurableState,
    "tuple[str, ...]": tuple,
    "tuple[RateLimit, ...]": rates.from_json,
    "Mapping[str, float]": json.loads,
    "Mapping[str, int]": lambda data: {name: int(number) for name, number in data.items()},
}
"""By the type of the field; a field of another type is as it is."""


@cache
def _fields_of(kind: type[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    return [
        (field.name, _READERS.get(str(field.type), lambda data: data))
        for field in attrs.fields(kind)
    ]


def _made(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return the record of which the script has given these fields, and no others."""
    fields = _fields_of(kind)  # type: ignore[arg-type]  # a class is hashable
    return kind(**{name: read(data[name]) for name, read in fields if name in data})


def instances(data: str) -> list[InstanceInfo]:
    """Return the instances of which the script has told."""
    return [_made(InstanceInfo, one) for one in json.loads(data)]


def _by_name(kind: type[T], data: Mapping[str, Any]) -> dict[str, T]:
    return {name: _made(kind, data[name]) for name in sorted(data)}


def _statistics(text: str) -> DurableStatistics:
    data = json.loads(text)
    due = Counter({lane: int(number) for lane, number in data["due"].items()})
    due.update(decode(of).job.lane for of in data["schedules"])
    return statistics_of(
        a_time(data["now"]),
        _by_name(LaneLimit, data["lanes"]),
        [(lane, state, name, int(number)) for state, lane, name, number in data["counts"]],
        [(*end.split(":", 1)[::-1], int(number)) for end, number in pairs_of(data["ends"])],
        data["handled"],
        {lane: int(number) for lane, number in data["sessions_of_lanes"].items()},
        {session: a_time(until) for session, until in pairs_of(data["pauses"])},
        sorted(map(_request, data["requests"]), key=attrgetter("id")),
        dict(sorted(map(_levels, data["quotas"]))[:NAMES_LISTED]),
        sessions=int(data["sessions"]),
        store=data["store"],
        due=due,
        next_due=next_due_of(*(a_time(data[one]) for one in ("first", "fires") if one in data)),
        templates={one[0]: one[3] for one in data["quotas"] if len(one) > 3},
    )


def _levels(data: Sequence[Any]) -> tuple[str, tuple[QuotaLevel, ...]]:
    name, limits, levels, *_ = data
    return name, tuple(
        rates.level_of(
            limit,
            int(used),
            seconds(full or None),
            int(granted),
            rates.kind_of(limit, of_quota=True)[1],
        )
        for limit, (used, full, granted) in zip(rates.from_json(limits), levels, strict=True)
    )


def _request(data: Mapping[str, Any]) -> Request:
    served = None if data["served"] == "0" else float(data["served"])
    job = int(data["job"]) if data["job"] else None
    whose = data["line"], data["instance"], ""
    return Request(int(data["id"]), *whose, served, job, a_time(data["since"]))


# ---- acts and questions: an encoding for each type of field, a decoding for each type of answer

_ENCODERS: Final[Mapping[str, Callable[[Any], Iterable[str]]]] = {
    "str": lambda value: (value,),
    "str | None": lambda value: (optional(value),),
    "int": lambda value: (str(value),),
    "int | None": lambda value: ("" if value is None else str(value),),
    "bool": lambda value: (str(int(value)),),
    "float": lambda value: (micros(value),),
    "float | None": lambda value: ("" if value is None else micros(value),),
    "ServedAt": lambda value: (f"{value:.0f}",),
    "Selection": lambda value: (_selection(value),),
    "DurableSchedule": lambda value: _schedule_words(value),
    "Sequence[SubmittedJob]": lambda value: chain.from_iterable(map(job_arguments, value)),
    "Sequence[int]": lambda value: (to_json(list(value)),),
    "Sequence[RateLimit]": lambda value: (rates.to_json(value), _meters_of_quota(value)),
    "Mapping[int, str]": lambda value: (to_json([[str(n), s] for n, s in value.items()]),),
    "Costs": lambda value: (to_json(to_data(value)),),
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


def _spend_made(answer: Sequence[Any]) -> tuple[int, ServedAt | None, tuple[str, ...]] | None:
    made = _request_made(answer[:2])
    return None if made is None else (*made, tuple(answer[2:]))


_ANSWERS: Final[Mapping[Any, Callable[[list[Any]], Any]]] = {
    type(None): lambda answer: None,
    bool: lambda answer: bool(answer[0]),
    bool | None: lambda answer: None if answer[0] is None else bool(answer[0]),
    int | None: lambda answer: answer[0],
    tuple[int, ...]: lambda answer: tuple(map(int, answer)),
    tuple[tuple[int, ...], tuple[int, ...], int]: lambda answer: (
        tuple(answer[0]),
        tuple(answer[1]),
        answer[2],
    ),
    tuple[int, ServedAt | None] | None: _request_made,
    tuple[int, ServedAt | None, tuple[str, ...]] | None: _spend_made,
    tuple[str, ...]: tuple,
    tuple[int, int] | str: lambda answer: tuple(map(int, answer)) if answer[1:] else answer[0],
    list[tuple[int, str, str]]: lambda answer: list(
        zip(answer[::3], answer[1::3], answer[2::3], strict=True)
    ),
    Mapping[str, LaneLimit]: lambda answer: configured(_by_name(LaneLimit, json.loads(answer[0]))),
    Mapping[str, GroupLimit]: lambda answer: _by_name(GroupLimit, json.loads(answer[0])),
    StoreRules: lambda answer: _made(StoreRules, json.loads(answer[0])),
    list[InstanceInfo]: lambda answer: instances(answer[0]),
    list[HeldSnapshot]: lambda answer: json.loads(answer[0]),
    list[QueuedJob]: lambda answer: list(map(_queued, answer)),
    DurableStatus | None: _status_and_texts,
    tuple[DurableBlocker, ...] | None: lambda answer: (
        None
        if answer[0] is None
        else tuple(_made(DurableBlocker, one) for one in json.loads(answer[0]))
    ),
    DurableStatistics: lambda answer: _statistics(answer[0]),
    tuple[QuotaLevel, ...]: lambda answer: _levels(json.loads(answer[0]))[1],
    tuple[float, list[DurableSchedule]]: _schedules,
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
    if kind == "spent":
        levels, until = about
        quota, found = _levels(json.loads(levels))
        return BudgetSpentError(quota, left_of(found), seconds(until))
    if kind == "withdrawn":
        return StoreUnavailableError("the act was withdrawn")
    if kind == "amount":
        unit, lane, amount = about
        return misfit(unit, amount, lane)
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
