"""Every interleaving of two workers and three jobs, on the real server.

A state is all keys of the database, what the two workers know, and the messages under way. From the
first state all acts are tried, from each new state again. States that differ only in the names of
incarnations, in numbers with the same order, or by a shift of time are one state (`_normal`).

* Two jobs are of one session: the first succeeds, and may be postponed before; the second fails.
  The third has no session, and succeeds.
* A lease lasts two seconds, a postponed job is due after one. A worker that is well beats before
  any second passes. A worker that does not trust its lease has cancelled its runs, and joins again.
* A fault is: a reply that is lost; a request that is late (it arrives at any later time, or never);
  a request that arrives twice, the second time at any later time; a worker that is killed, with
  another in its place; a worker that is stopped until its lease is over; a worker whose heartbeats
  have no replies until it does not trust its lease, which it has.
* A worker does what `Worker` and `Lease` do: a step without an answer is asked again, also while
  the worker waits for the answer of its join; a join without an answer is asked again.

In a scene (`SCENES`) calls of other verbs are under way from the beginning: each arrives once, or
twice with the same ticket, at any time, or never. They submit jobs that coalesce, fire a schedule
from two instances, spend, settle and release what a budget has, or grant more of it while some
spend without a wait and settle above their estimates.

What must hold of each state is in `Explorer._look_at`, of each act in `Explorer._compare`. From
each state the workers go on without a fault, by the acts of the lowest `rank` that change
something: all jobs end.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import attrs

from trio_lanes import Coalesce, RateLimit
from trio_lanes.durable import (
    DurableSchedule,
    Failed,
    Finish,
    LaneLimit,
    Opening,
    Postponed,
    Released,
    Succeeded,
)
from trio_lanes.durable._valkey import text
from trio_lanes.durable._valkey.script import Script
from trio_lanes.durable._valkey.store import ValkeyStore
from trio_lanes.durable.acts.inspection import Check
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.locks import Grant, Release, Settle, Spend
from trio_lanes.durable.acts.schedules import FireSchedule, PutSchedule
from trio_lanes.durable.store import Step, SubmittedJob

from .clock import KEY
from .server import Server, command

NAMESPACE: Final = "ways"
ROOT: Final = f"{{{NAMESPACE}}}:"
BEGIN: Final = 1_000_000
"""The server's first second: cjson writes 14 digits of a number, so numbers must have fewer."""
LEASE: Final = 2
AHEAD: Final = 4
"""Of how many states the server has the acts at most, while the answers to others are read."""
OUTCOMES: Final = {
    "succeeds": Succeeded("1"),
    "fails": Failed('{"type": "E", "message": "m", "traceback": ""}'),
    "is postponed": Postponed(1.0, True, False, "E: m"),
    "is released": Released(),
}
ENDS: Final = {"succeeds": "succeeded", "fails": "failed"}
SETS: Final = frozenset({"lists", "lr"})
CAP: Final = RateLimit(3, per="month", unit="tokens")
ESTIMATE, ABOVE, GRANTED = 2, 1, 1


def _joins(number: int, **how: Any) -> Enqueue:
    return Enqueue([SubmittedJob(name="echo", payload=f"{number}", coalesce=Coalesce("k", **how))])


def _fires(due: int) -> FireSchedule:
    job = SubmittedJob(name="echo", session="s", key=f"tick@{due}")
    return FireSchedule("tick", 0, due, due + 1, due, 0, "skip", "{}", None, [job])


CALLS: Final[dict[str, Callable[[int], Any]]] = {
    "submits": _joins,
    "submits or drops": lambda number: _joins(number, keep="first", while_running="drop"),
    "fires": _fires,
    "fires elsewhere": _fires,
    "spends": lambda number: Spend("q", [CAP], {"tokens": ESTIMATE}),
    "spends at once": lambda number: Spend("q", [CAP], {"tokens": ESTIMATE}, wait=False),
    "settles": lambda number: Settle("q", [CAP], BEGIN * 10**6, {"tokens": -1}),
    "settles above": lambda number: Settle("q", [CAP], BEGIN * 10**6, {"tokens": ABOVE}),
    "grants": lambda number: Grant("q", [CAP], {"tokens": GRANTED}, "{}"),
    "releases": lambda number: Release(number, True),
}
"""The acts that are not those of a worker, from a number."""
SCENES: Final[dict[str, tuple[tuple[str | None, ...], tuple[tuple[str, int], ...]]]] = {
    "jobs": (("s", "s", None), ()),
    "jobs that coalesce": ((), (("submits", 1), ("submits or drops", 2))),
    "a schedule": ((), (("fires", BEGIN), ("fires elsewhere", BEGIN), ("fires", BEGIN + 1))),
    "a budget": (("s",), (("spends", 0), ("spends", 1))),
    "a grant": (
        ("s",),
        (("spends at once", 0), ("spends at once", 1), ("grants", 0)),
    ),
}
"""The sessions of the jobs that are there at first, and the calls, each with its number."""
COMPARED: Final = SETS | {
    *("s", "si", "sd", "sl", "sw", "r", "w", "due", "h", "run", "want", "le", "su", "x"),
    *("turns", "holds", "n", "ph", "pb", "k", "sc", "l", "m", "qg"),
}
"""Keys whose values belong to the name of a state, by the words with which they begin."""

SAVE: Final = """
local values, dumps = {}, {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  dumps[#dumps + 1] = key
  dumps[#dumps + 1] = redis.call('DUMP', key)
  local kind, name = redis.call('TYPE', key).ok, string.match(key, '}:(%a+)')
  local value = true
  if name == 'j' or name == 'st' or name == 'l' then
    value = cmsgpack.unpack(redis.call('GET', key))
  elseif kind == 'zset' then
    value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then
    value = redis.call('SMEMBERS', key)
    table.sort(value)
  elseif kind == 'list' then
    value = redis.call('LLEN', key)
  elseif kind == 'string' and name == 'm' then
    value = redis.call('GET', key)
  elseif kind == 'string' and name == 'b' then
    value = cmsgpack.unpack(redis.call('GET', key))[1]  -- 0: the act of the ticket was not refused
  elseif kind == 'hash' and name ~= 'L' and name ~= 'kinds' and name ~= 'qu' then
    local flat = redis.call('HGETALL', key)
    value = {}
    for at = 1, #flat, 2 do
      local packed = name == 'sc' or name == 'qg' or name == 'holds'
      value[flat[at]] = packed and cmsgpack.unpack(flat[at + 1]) or flat[at + 1]
    end
    value.rules = nil  -- it is packed
  end
  values[key] = value
end
return { cjson.encode(values), cmsgpack.pack(dumps) }
"""
FORGETS: Final = "  call('PEXPIREAT', key, int(math.min(2 ^ 53, millis)))"
"""The server's own clock is far ahead of that of the states, and it would forget each budget."""
RESTORE: Final = """
redis.call('FLUSHDB')
local dumps = cmsgpack.unpack(ARGV[1])
for at = 1, #dumps, 2 do
  redis.call('RESTORE', dumps[at], 0, dumps[at + 1])
end
"""


class Wire:
    """One connection, over which many commands are sent before the first answer is read."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._answers = self._socket.makefile("rb")

    def send(self, commands: Sequence[bytes]) -> None:
        """Send commands, whose answers are read later."""
        self._socket.sendall(b"".join(commands))

    def read(self, number: int) -> list[Any]:
        """Return the answers to the oldest commands without one."""
        return [self._read() for _ in range(number)]

    def ask(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands; return their answers."""
        self.send(commands)
        return self.read(len(commands))

    def _read(self) -> Any:
        line = self._answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self._answers.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        assert kind != b"-", rest.decode()
        return int(rest) if kind == b":" else rest

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()


class _Asked(Exception):
    """The arguments of a call, instead of its answer."""


class _Link:
    """In the place of the link of a store: it has the arguments of the call."""

    async def call(self, verb: str, *arguments: str, weight: int = 1) -> None:
        raise _Asked(verb, str(len(arguments)), *arguments)


class Run(NamedTuple):
    """A run of a job."""

    id: int
    fence: int
    attempt: int


class End(NamedTuple):
    """The end of a run that its worker has not reported, or not surely."""

    id: int
    fence: int
    how: str


class Request(NamedTuple):
    """A message of a worker to the store."""

    verb: str
    instance: str
    number: int = 0
    finished: tuple[End, ...] = ()
    room: int = 0
    former: str = ""
    lost: tuple[Run, ...] = ()
    held: tuple[int, ...] = ()


class Worker(NamedTuple):
    """What a worker knows.

    Attributes:
      instance: its incarnation, or the last that it had.
      room: how many jobs it runs at once.
      mode: "joined", "new", or "lost": it does not trust its lease any more.
      number: of its last step.
      asked: its step without an answer.
      answer: the lost answer to it, as far as it must be the same again.
      runs: what it runs.
      outbox: the ends of runs for the next step.
      joining: its join without an answer.
      lost: the runs that were cancelled when it lost its lease.
      begun: how many incarnations it had.
    """

    instance: str
    room: int
    mode: str = "new"
    number: int = 0
    asked: Request | None = None
    answer: tuple[Any, ...] | None = None
    runs: tuple[Run, ...] = ()
    outbox: tuple[End, ...] = ()
    joining: Request | None = None
    lost: tuple[Run, ...] = ()
    begun: int = 0

    def losing(self) -> Worker:
        """Return the worker when it does not trust its lease any more."""
        released = tuple(End(run.id, run.fence, "is released") for run in self.runs)
        return self._replace(
            mode="lost", runs=(), outbox=self.outbox + released, lost=self.runs, joining=None
        )


Workers = tuple[Worker, ...]
Air = tuple[Request, ...]


class State:
    """All keys, what the workers know, and the messages under way.

    Attributes:
      raw: JSON of the keys' values, as far as they are compared.
      saved: all keys, as the server restores them.
      steps: the acts from the first state on.
      name: the same for states that are the same.
      over: whether all jobs have ended.
      next: the name of the state to which the workers go on from here; b"": there is none.
    """

    def __init__(
        self, raw: bytes, keys: Any, saved: bytes, known: tuple[Workers, Air], steps: Any
    ) -> None:
        self.raw = raw
        self.saved = saved
        self.workers, self.air = known
        self.steps = steps
        self._read(keys)
        self.name = _normal(self)
        self.over = all(job["state"] in ENDS.values() for job in self.jobs.values())
        self.next = b""

    def _read(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        self.jobs = {int(k[len(ROOT) + 2 :]): v for k, v in keys.items() if _kind(k) == "j"}
        self.now = int(keys[KEY]["seconds"])

    def fold(self) -> None:
        """Keep the values of the keys as JSON alone, which is far smaller."""
        self.keys, self.jobs = {}, {}

    def unfold(self) -> None:
        """Have the values of the keys again."""
        self._read(json.loads(self.raw))

    def done(self) -> None:
        """Forget the keys: all acts have been tried."""
        self.fold()
        self.raw = self.saved = b""

    def is_alive(self, instance: str) -> bool:
        """Whether an instance has its lease in the store."""
        return _scores(self.keys, "in").get(instance, 0) > self.now * 1e6


class Act(NamedTuple):
    """Something that may happen next.

    Attributes:
      words: what happens, in words.
      then: gives the workers and messages after it, from the answers of the store.
      sends: what the store is sent, and seconds that pass.
      faults: how many faults it is.
      rank: its place among the acts by which the workers go on; None: it is none of these.
    """

    words: str
    then: Callable[[list[Any]], tuple[Workers, Air]]
    sends: tuple[Request | int, ...] = ()
    faults: int = 0
    rank: int | None = None


class Wrong(AssertionError):
    """What must hold does not; with the acts that led there."""


def _kind(key: str) -> str:
    """Return what a key of the namespace is for; "": it is another."""
    return key.removeprefix(ROOT).partition(":")[0] if key.startswith(ROOT) else ""


def _scores(keys: dict[str, Any], key: str) -> dict[str, float]:
    flat = keys.get(ROOT + key) or ()
    return dict(zip(flat[::2], map(float, flat[1::2]), strict=True))


# ---- one name for all states that are the same


def _fences(state: State) -> Iterator[int]:
    for job in state.jobs.values():
        if "fence" in job:
            yield job["fence"]
    requests = list(state.air)
    for worker in state.workers:
        yield from (one.fence for one in (*worker.runs, *worker.outbox, *worker.lost))
        for part in worker.answer or ():
            yield from part
        requests += [one for one in (worker.asked, worker.joining) if one]
    for request in requests:
        yield from (one.fence for one in (*request.finished, *request.lost))
        yield from request.held


def _ticket(request: Request) -> str:
    """Return the ticket of a join or a call."""
    return f"{request.verb} {request.number}" if request.verb in CALLS else request.instance


def _ranks(numbers: Iterable[Any]) -> dict[Any, int]:
    return {number: rank for rank, number in enumerate(sorted(set(numbers)))}


def _alone(worker: Worker) -> tuple[Any, ...]:
    """Return what a worker knows without names and numbers: two workers change places by it."""
    runs, ends = [run.id for run in worker.runs], [(end.id, end.how) for end in worker.outbox]
    step = worker.asked
    asked = [step.room, *((end.id, end.how) for end in step.finished)] if step else []
    return worker.mode, runs, ends, str(asked), worker.joining is None


def _normal(state: State) -> bytes:
    """Return the name of a state, in which instances, numbers and times are renamed."""
    leases = _scores(state.keys, "in")
    steps = {name: state.keys[f"{ROOT}st:{name}"] for name in leases}
    requests = [*state.air, *(worker.joining for worker in state.workers if worker.joining)]
    instances = {*leases, *(worker.instance for worker in state.workers)}
    for request in requests:
        instances |= {request.instance, request.former}
    swapped = _alone(state.workers[1]) < _alone(state.workers[0])
    joined = {worker.instance for worker in state.workers if worker.mode == "joined"}
    new_names = {"": ""}
    for which, worker in enumerate(state.workers):
        if worker.joining:
            new_names[worker.joining.instance] = f"{which ^ swapped} joins"
        if worker.instance:
            new_names[worker.instance] = f"{which ^ swapped}"
    for name in sorted(instances - new_names.keys()):
        new_names[name] = f"dead {len(new_names)}"
    fences, ids = _ranks(_fences(state)), _ranks(state.jobs)
    id_names = {f"{id}": f"job {rank}" for id, rank in ids.items()}
    places = _ranks(job["place"] for job in state.jobs.values() if "place" in job)
    ready = _ranks(job["ready"] for job in state.jobs.values() if "ready" in job)
    numbers = {name: step["number"] for name, step in steps.items()}
    numbers |= {worker.instance: worker.number for worker in state.workers}

    def of_runs(runs: Iterable[Run]) -> Any:
        return [(ids[run.id], fences[run.fence], run.attempt) for run in runs]

    def of_ends(ends: Iterable[End]) -> Any:
        return [(ids[end.id], fences[end.fence], end.how) for end in ends]

    def ago(one: Request) -> int:
        if one.verb in CALLS:
            return 0 if one.verb == "releases" else one.number
        return max(-2, one.number - numbers.get(one.instance, 0))

    def of_request(one: Request | None) -> Any:
        return one and (
            *(one.verb, new_names[one.instance], ago(one)),
            *(of_ends(one.finished), one.room, new_names[one.former], of_runs(one.lost)),
            *([fences[fence] for fence in one.held], state.keys.get(f"{ROOT}b:{_ticket(one)}")),
        )

    def of_worker(worker: Worker) -> Any:
        return (
            *(new_names[worker.instance], worker.mode, of_request(worker.asked)),
            worker.answer and [[fences[one] for one in part] for part in worker.answer],
            of_runs(worker.runs),
            *(of_ends(worker.outbox), of_request(worker.joining), of_runs(worker.lost)),
        )

    def of_job(job: dict[str, Any]) -> Any:
        if job["state"] in ENDS.values():
            return ("ended",)
        due = job.get("due") if job["state"] == "parked" else None
        return (
            *(job["state"], job.get("attempts"), job.get("crashes"), job.get("alone")),
            *(job.get("crashed_with"), new_names.get(job.get("instance", ""), "gone")),
            *(fences.get(job.get("fence")), job.get("since"), job.get("why"), job.get("shelf")),
            *(places.get(job.get("place")), ready.get(job.get("ready")), "coalesce" in job),
            due and max(0, due / 1e6 - state.now),
        )

    def of_instance(name: str, step: dict[str, Any]) -> Any:
        claimed = [n for n in _scores(state.keys, f"run:{name}").values() if n > step["after"]]
        left = max(0, leases[name] / 1e6 - state.now)
        if name in joined:  # it beats before any time passes
            left = min(left, 1)
        number = max(-2, step["number"] - numbers[name])
        return new_names[name], number, left, len(claimed)

    def of_key(key: str, value: Any) -> Any:
        kind, _, rest = key[len(ROOT) :].partition(":")
        if kind == "l":
            value = value["served"] != "0", new_names.get(value["instance"], "gone")
        elif kind == "sc":
            value = [(one["next"], one["skipped"]) for one in value.values()]
        elif kind == "holds":  # what is noted next depends on the last one only
            value = sorted((lane, one[-1]) for lane, one in value.items())
        elif isinstance(value, dict):
            value = sorted(value.items())
        elif kind not in SETS and kind != "m" and not isinstance(value, int):
            value = [id_names.get(one, one) for one in value[::2]]  # without scores
        rest = "" if kind == "l" else rest
        return kind, new_names.get(rest, rest), value

    parts = (
        sorted((ids[id], of_job(job)) for id, job in state.jobs.items()),
        sorted(of_instance(name, step) for name, step in steps.items()),
        sorted(of_key(k, v) for k, v in state.keys.items() if _kind(k) in COMPARED),
        list(map(of_worker, state.workers[::-1] if swapped else state.workers)),
        sorted(repr(of_request(one)) for one in state.air),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


# ---- what the script is asked


class Talk:
    """The calls of the script, as a store of the library makes them."""

    def __init__(self, script: Script, limit: int, fair: bool) -> None:
        self.script = script
        self._opening = Opening(
            names=frozenset({"echo"}),
            lanes={"main": LaneLimit(limit, fair=fair)},
            max_crashes=3,
            hold=False,
            result_ttl=1e6,
            lease_ttl=float(LEASE),
            worker=True,
            host="host",
            pid=1,
        )
        self._store = ValkeyStore("valkey://127.0.0.1", namespace=NAMESPACE)
        self._store._opening = self._opening
        self._store._rules = text.rules_of(self._opening.rules)
        self._store._link = _Link()  # type: ignore[assignment]
        self.version = 0
        """That of the schedule of a scene."""

    def opening(self) -> bytes:
        """Return the call that makes the namespace."""
        return self._call("open", "2", text.opening_argument(self._opening, "identity"), "1")

    def enqueue(self, jobs: Sequence[SubmittedJob]) -> bytes:
        """Return the call that accepts jobs."""
        return self._of(self._store.do(Enqueue(jobs), "ticket"))

    def put_schedule(self) -> bytes:
        """Return the call that sets the schedule of a scene."""
        job = SubmittedJob(name="echo")
        tick = DurableSchedule(name="tick", job=job, every=1.0, next=float(BEGIN))
        return self._of(self._store.do(PutSchedule(tick), "put"))

    def check(self) -> bytes:
        """Return the call that checks the store."""
        return self._of(self._store.look(Check()))

    def request(self, one: Request) -> bytes:
        """Return the call for a message of a worker."""
        self._store.instance = one.former if one.verb == "join" else one.instance
        if one.verb in CALLS:
            act = CALLS[one.verb](one.number)
            if isinstance(act, FireSchedule):
                act = attrs.evolve(act, version=self.version)
            return self._of(self._store.do(act, _ticket(one)))
        if one.verb == "join":
            lost = [(run.id, run.fence) for run in one.lost]
            return self._of(self._store.join(one.instance, lost, one.held))
        if one.verb == "beat":
            return self._of(self._store.beat())
        finished = [Finish(end.id, end.fence, OUTCOMES[end.how]) for end in one.finished]
        return self._of(self._store.step(one.number, finished, one.room))

    def _of(self, call: Coroutine[Any, Any, Any]) -> bytes:
        try:
            call.send(None)
        except _Asked as asked:
            return self._call(*asked.args)
        raise AssertionError("no call was made")

    def _call(self, *words: str) -> bytes:
        header = "run", "channel", self._store.instance, "0", "inf", self._store._rules
        return command(*self.script.as_library.call, 1, f"{ROOT}meta", *header, *words)


# ---- what may happen next


def _acts(state: State) -> Iterator[Act]:
    for which in range(len(state.workers)):
        yield from _Next(state, which).acts()
    for at, request in enumerate(state.air):
        rest = state.air[:at] + state.air[at + 1 :]
        words = f"{request.verb} {request.number or ''} of {request.instance} arrives late"

        def then(
            answers: list[Any], rest: Air = rest, request: Request = request
        ) -> tuple[Workers, Air]:
            return state.workers, (*rest, *_after_call(request, answers[0]))

        yield Act(words, then, (request,))
    if not state.over:
        yield from _times(state)


def _done(state: State, verb: str) -> int:
    """Return how many calls of a verb, which have numbers below 3, were done."""
    return sum(state.keys.get(f"{ROOT}b:{verb} {number}") == 0 for number in range(3))


def _budget(state: State) -> tuple[int, int]:
    """Return how much of the budget is used, and how much was granted."""
    marks = [m for k, m in state.keys.items() if k.startswith(f"{ROOT}m:month")] or ["0 0"]
    grants = state.keys.get(f"{ROOT}qg", {}).values()
    granted = sum(amount for one in grants for _, amount in one)
    return int(marks[0].split()[1]) // 10**6, granted // 10**6  # they are counted in millionths


def _after_call(request: Request, answer: Any) -> Air:
    """Return what comes after a call: what was spent is settled, a request for it is released."""
    if not request.verb.startswith("spends") or len(answer) < 2:  # its instance has no lease
        return ()
    if answer[0] == "spent":  # it is refused
        return ()
    number = int(answer[0])
    settles = "settles above" if request.verb == "spends at once" else "settles"
    verb, number = ("releases", number) if number else (settles, request.number)
    return (request._replace(verb=verb, number=number),)


def _times(state: State) -> Iterator[Act]:
    """Time passes. All workers beat in it that are well."""
    joined = [which for which, one in enumerate(state.workers) if one.mode == "joined"]
    beats = {which: Request("beat", state.workers[which].instance) for which in joined}

    def passes(words: str, stopped: int | None, beating: list[int], ticks: int) -> Act:
        sends = (*(beats[which] for which in beating), 1) * ticks

        def then(answers: list[Any]) -> tuple[Workers, Air]:
            workers = list(state.workers)
            for which in joined:
                alive = [answers[at][0] for at, one in enumerate(sends) if one == beats[which]]
                if which == stopped or not all(alive):
                    workers[which] = workers[which].losing()
            return tuple(workers), state.air

        faults, rank = (0, 9) if stopped is None else (1, None)
        return Act(words, then, sends, faults, rank)

    dues = [job["due"] for job in state.jobs.values() if job["state"] == "parked"]
    mine = {state.workers[which].instance for which in joined}
    dues += [end for name, end in _scores(state.keys, "in").items() if name not in mine]
    if any(due > state.now * 1e6 for due in dues):
        yield passes("a second passes", None, joined, 1)
    for which in joined:
        others = [other for other in joined if other != which]
        words = f"worker {which} is stopped until its lease is over"
        yield passes(words, which, others, LEASE)
        words = f"worker {which} has no replies until it does not trust its lease"
        yield passes(words, which, joined, LEASE)


class _Next:
    """What one worker may do next."""

    def __init__(self, state: State, which: int) -> None:
        self._state = state
        self._which = which
        self._worker = state.workers[which]

    def acts(self) -> Iterator[Act]:
        worker, over = self._worker, self._state.over
        joined = worker.mode == "joined"
        if joined and not over:
            yield from self._beat()
        elif not over:
            yield from self._join()
        if worker.asked:
            yield from self._step("asks again", worker.asked, 2 if joined else None)
        elif joined and not over:
            most = worker.room - len(worker.runs)
            yield from self._step_with(most, 5)
            if most > 1:
                yield from self._step_with(1, None)
        elif worker.outbox and worker.instance:
            yield from self._step_with(0, None)
        for run in worker.runs:
            for how in self._outcomes(run):
                runs = tuple(other for other in worker.runs if other is not run)
                outbox = (*worker.outbox, End(run.id, run.fence, how))
                ended = worker._replace(runs=runs, outbox=outbox)
                rank = None if how == "is postponed" else 4
                words = f"has run job {run.id}, which {how}"
                yield self._act(words, lambda _, after=ended: after, rank=rank)
        if (worker.instance or worker.joining) and not over:
            begun = worker.begun + (worker.joining is not None)
            yield self._act("is killed", lambda _: Worker("", worker.room, begun=begun), faults=1)

    def _outcomes(self, run: Run) -> tuple[str, ...]:
        place = sorted(self._state.jobs).index(run.id)
        if place == 0 and run.attempt == 1:
            return "succeeds", "is postponed"
        return ("fails",) if place == 1 else ("succeeds",)

    def _act(
        self, words: str, after: Callable[[Any], Worker], air: Air = (), **options: Any
    ) -> Act:
        def then(answers: list[Any]) -> tuple[Workers, Air]:
            workers = list(self._state.workers)
            workers[self._which] = after(answers[0] if answers else None)
            return tuple(workers), (*self._state.air, *air)

        return Act(f"worker {self._which} {words}", then, **options)

    def _ask(
        self,
        words: str,
        request: Request,
        rank: int | None,
        answered: Callable[[Any], Worker],
        unknown: Worker,
        reply_lost: Callable[[Any], Worker] | None = None,
    ) -> Iterator[Act]:
        sends, lost = (request,), reply_lost or (lambda _: unknown)
        yield self._act(words, answered, sends=sends, rank=rank)
        yield self._act(f"{words}, without a reply", lost, sends=sends, faults=1)
        yield self._act(f"{words}, which is late", lambda _: unknown, sends, faults=1)
        yield self._act(f"{words}, twice", answered, sends, sends=sends, faults=1)

    def _beat(self) -> Iterator[Act]:
        """Beat where it gives back runs; also late, when it may keep the lease of a dead worker."""
        worker, beat = self._worker, Request("beat", self._worker.instance)

        def answered(reply: Any) -> Worker:
            return worker if reply[0] else worker.losing()

        leases = _scores(self._state.keys, "in").values()
        if not self._state.is_alive(worker.instance) or min(leases) <= self._state.now * 1e6:
            yield self._act("beats", answered, sends=(beat,), rank=7)
        yield self._act("beats, which is late", lambda _: worker, (beat,), faults=1)

    def _join(self) -> Iterator[Act]:
        worker = self._worker
        join = worker.joining or Request(
            "join", f"{self._which}.{worker.begun + 1}", former=worker.instance, lost=worker.lost
        )
        reported = worker.asked.finished if worker.asked else ()
        join = join._replace(held=tuple(end.fence for end in (*reported, *worker.outbox)))
        joined = worker._replace(
            instance=join.instance,
            mode="joined",
            number=0,
            asked=None,
            answer=None,
            outbox=reported + worker.outbox,
            joining=None,
            lost=(),
            begun=int(join.instance.partition(".")[2]),
        )
        yield from self._ask("joins", join, 1, lambda _: joined, worker._replace(joining=join))

    def _step_with(self, room: int, rank: int | None) -> Iterator[Act]:
        worker = self._worker
        step = Request("step", worker.instance, worker.number + 1, worker.outbox, room)
        yield from self._step(f"steps with room {room}", step, rank)

    def _step(self, words: str, step: Request, rank: int | None) -> Iterator[Act]:
        worker = self._worker
        unknown = worker
        if worker.asked is None:
            unknown = worker._replace(number=step.number, asked=step, outbox=())

        def answered(reply: Any) -> Worker:
            answer = text.step_of(reply)
            if worker.mode == "joined":
                runs = tuple(Run(one.id, one.fence, one.attempt) for one in answer.claims)
                return unknown._replace(asked=None, answer=None, runs=worker.runs + runs)
            ends = (*step.finished, *unknown.outbox)
            recorded = {end.fence for end in step.finished}.difference(answer.stale)
            left = tuple(end for end in ends if end.fence not in recorded)
            return unknown._replace(asked=None, answer=None, outbox=left)

        def reply_lost(reply: Any) -> Worker:
            return unknown._replace(answer=_to_repeat(text.step_of(reply)))

        yield from self._ask(words, step, rank, answered, unknown, reply_lost)


def _to_repeat(step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what a step that is asked again must answer again: its claims and stale ends."""
    return tuple(claim.fence for claim in step.claims), step.stale


# ---- all of them


class _Trial(NamedTuple):
    """A state whose acts the server has been sent: where the answers to each are, and how many."""

    state: State
    acts: list[Act]
    ranges: dict[tuple[Request | int, ...], tuple[int, int]]
    number: int


class Explorer:
    """All states of two workers, three jobs and a lane.

    Args:
      limit: of the lane.
      room: how many jobs a worker runs at once.
      fair: whether the lane is fair: then all jobs have one owner.
      scene: the jobs that are there, and the calls that are under way, from the beginning.
      copies: how often each of them arrives at most.
    """

    def __init__(
        self,
        server: Server,
        script: Script,
        limit: int,
        room: int,
        fair: bool = False,
        scene: str = "jobs",
        copies: int = 1,
    ) -> None:
        self._wire = Wire(server)
        self._talk = Talk(Script(script.text.replace(FORGETS, "")), limit, fair)
        self._owner = "s" if fair else None
        self._scene = scene
        self._copies = copies
        self._limit = limit
        self._room = room
        self._seen: dict[bytes, State] = {}
        self._well: set[bytes] = set()  # from which all jobs end
        self.acts = 0
        load = [command("SCRIPT", "LOAD", one) for one in (SAVE, RESTORE)]
        load.append(command(*self._talk.script.as_library.load))
        self._save, self._restore, _ = (name.decode() for name in self._wire.ask(load))

    def close(self) -> None:
        """End the connection."""
        self._wire.close()

    def explore(self, faults: int) -> int:
        """Explore all states with at most so many faults; return how many there are.

        Raises:
          Wrong: if something does not hold.
        """
        first = self._first()
        layer = {first.name: first}
        for used in range(faults + 1):
            self._seen |= layer
            new, later = deque(layer.values()), {}
            asked: deque[_Trial] = deque()
            while new or asked:
                while new and len(asked) < AHEAD:
                    asked.append(self._try(new.popleft(), used < faults))
                for act, after in self._after(asked.popleft()):
                    after.fold()
                    if act.faults:
                        later.setdefault(after.name, after)
                    elif after.name not in self._seen:
                        self._seen[after.name] = after
                        new.append(after)
            for state in self._seen.values():
                self._go_on(state)
            layer = {name: state for name, state in later.items() if name not in self._seen}
        return len(self._seen)

    def _first(self) -> State:
        sessions, calls = SCENES[self._scene]
        jobs = [
            SubmittedJob(name="echo", session=session, owner=self._owner) for session in sessions
        ]
        *_, saved = self._wire.ask(
            [
                command("FLUSHALL"),
                command("HSET", KEY, "seconds", BEGIN, "micros", 0),
                self._talk.opening(),
                self._talk.enqueue(jobs),
                self._talk.put_schedule(),
                self._saving(),
            ]
        )
        raw, keys = saved
        worker = Worker("", self._room)
        # half of the calls are of the first incarnation of a worker, half of the other's
        air = tuple(
            Request(verb, f"{at % 2}.1", number)
            for at, (verb, number) in enumerate(calls)
            for _ in range(self._copies)
        )
        values = json.loads(raw)
        ((_, tick),) = values[f"{ROOT}sc"].items()
        self._talk.version = int(tick["version"])
        return State(raw, values, keys, ((worker, worker), air), None)

    def _saving(self) -> bytes:
        return command("EVALSHA", self._save, 0)

    def _try(self, state: State, faults: bool) -> _Trial:
        """Have the server check a state, and do what may happen next."""
        state.unfold()
        acts = [act for act in _acts(state) if faults or not act.faults]
        restore = self._restoring(state.saved)
        commands = [restore, self._talk.check()]
        ranges: dict[tuple[Request | int, ...], tuple[int, int]] = {}
        for act in acts:
            if act.sends and act.sends not in ranges:
                begin = len(commands) + 1
                commands += [restore, *map(self._command, act.sends), self._saving()]
                ranges[act.sends] = begin, len(commands) - 1
        self._wire.send(commands)
        return _Trial(state, acts, ranges, len(commands))

    def _after(self, trial: _Trial) -> Iterator[tuple[Act, State]]:
        """Yield what may happen next, with the state after it."""
        state, acts, ranges, number = trial
        answers = self._wire.read(number)
        self._look_at(state, answers[1])
        found: dict[Any, Any] = {(): ([], state.raw, state.keys, state.saved)}
        for sends, (begin, end) in ranges.items():
            raw, saved = answers[end]
            reply = [
                _decoded(one[4][1:]) if isinstance(one, list) else one for one in answers[begin:end]
            ]
            found[sends] = reply, raw, json.loads(raw), saved
        ranked = []
        for act in acts:
            reply, *keys = found[act.sends]
            after = State(*keys, act.then(reply), (state.steps, act.words))
            self.acts += 1
            self._compare(state, act, reply, after)
            if act.rank is not None and after.name != state.name:
                ranked.append((act.rank, act.words, after.name))
            yield act, after
        state.next = b"" if state.over else min(ranked, default=(0, "", b""))[2]
        state.done()

    def _command(self, one: Request | int) -> bytes:
        if isinstance(one, int):
            return command("HINCRBY", KEY, "seconds", one)
        return self._talk.request(one)

    def _restoring(self, saved: bytes) -> bytes:
        words = command("EVALSHA", self._restore, 0, "").removesuffix(b"$0\r\n\r\n")
        return words + b"$%d\r\n%s\r\n" % (len(saved), saved)

    def _look_at(self, state: State, checked: Any) -> None:
        """Regard what must hold in a state."""
        wrong = self._wrong(state)
        problems = _decoded(checked[4])[1]
        wrong(not problems, f"check finds {problems}")
        jobs = [state.jobs[id] for id in sorted(state.jobs)]
        running = [job for job in jobs if job["state"] == "running"]
        wrong(len(running) <= self._limit, "more jobs run than the lane allows")
        slots = _scores(state.keys, "h:main").values()
        wrong(sorted(slots) == sorted(job["fence"] for job in running), "slots and runs differ")
        if self._scene == "jobs":
            first, second, _ = jobs
            begun = second["state"] != "waiting" or "fence" in second
            before = first["state"] in ENDS.values()
            wrong(not begun or before, "the second of the session was first")
        self._look_at_scene(state, jobs)
        counts: dict[str, str] = {}
        ends: dict[str, str] = {}
        sessions: set[str] = set()
        for job in jobs:
            if job["state"] not in ENDS.values():
                field = f"{job['state']}:4:main:echo"
                counts[field] = str(int(counts.get(field, "0")) + 1)
            else:
                field = f"{job['state']}:main"
                ends[field] = str(int(ends.get(field, "0")) + 1)
            if "place" in job:
                sessions.add(job["session"])
            crashed = [run for run in job.get("runs", ()) if run[6] == "crashed"]
            wrong(job.get("crashes", 0) == len(crashed), "crashes and history differ")
        wrong(state.keys.get(f"{ROOT}n", {}) == counts, "the counts of jobs are wrong")
        wrong(state.keys.get(f"{ROOT}ends", {}) == ends, "the counts of ends are wrong")
        counted = int(state.keys[f"{ROOT}meta"].get("sessions", "0"))
        wrong(counted == len(sessions), "the number of sessions is wrong")
        for worker in state.workers:
            for run in worker.runs:
                job = state.jobs[run.id]
                its = job["state"], job.get("fence"), job.get("instance")
                mine = "running", run.fence, worker.instance
                wrong(its == mine, f"a worker with a lease runs job {run.id}, the store: {its}")

    def _look_at_scene(self, state: State, jobs: list[dict[str, Any]]) -> None:
        wrong = self._wrong(state)
        alive = [job for job in jobs if job["state"] in ("waiting", "parked")]
        joined = [job for job in alive if "coalesce" in job and "fence" not in job]
        wrong(len(joined) <= 1, "two jobs wait that have the same key to coalesce")
        ((_, tick),) = state.keys[f"{ROOT}sc"].items()
        ticks = [job["key"] for job in jobs if job.get("key")]
        passed = tick["next"] / 1e6 - BEGIN
        wrong(len(set(ticks)) == len(ticks), "a due time was submitted twice")
        wrong(len(ticks) + tick["skipped"] == passed, "due times are neither submitted nor counted")
        used, granted = _budget(state)
        above = ABOVE * _done(state, "settles above")
        wrong(used - above <= CAP.limit + granted, "more is spent than the budget has")
        spends = _done(state, "spends") + _done(state, "spends at once")
        wrong(used <= spends * ESTIMATE + above, "more is used than was spent and settled")
        wrong(granted == GRANTED * _done(state, "grants"), "more or less is granted than was asked")
        waits = [key for key in state.keys if _kind(key) == "l"]
        wrong(self._scene != "a grant" or not waits, "a spend waits that does not want to")

    def _compare(self, before: State, act: Act, answers: Any, after: State) -> None:
        """Regard what must hold of an act."""
        wrong = self._wrong(after)
        request = act.sends[0] if len(act.sends) == 1 else None
        ends = request.finished if isinstance(request, Request) else ()
        reported = {(end.id, end.fence, ENDS.get(end.how)) for end in ends}
        for id, job in after.jobs.items():
            was = before.jobs.get(id)
            if was is None:
                its = request.verb if isinstance(request, Request) else "no call"
                wrong(its in CALLS and job["state"] == "waiting", f"job {id} comes from {its}")
            elif was["state"] in ENDS.values():
                wrong(job == was, f"job {id} has changed after its end")
            elif job["state"] in ENDS.values():
                mine = id, was.get("fence"), job["state"]
                wrong(was["state"] == "running" and mine in reported, f"job {id} ends by itself")
        if _done(after, "spends at once") > _done(before, "spends at once"):
            used, granted = _budget(after)
            wrong(used <= CAP.limit + granted, "more is spent at once than the budget has")
        if isinstance(request, Request) and request.verb == "step":
            self._compare_steps(before, request, text.step_of(answers[0]), after)

    def _compare_steps(self, before: State, request: Request, step: Step, after: State) -> None:
        wrong = self._wrong(after)
        same = after.jobs == before.jobs
        if not before.is_alive(request.instance):
            wrong(same and not step.claims, "a step without a lease did something")
            return
        last = before.keys[f"{ROOT}st:{request.instance}"]["number"]
        if request.number > last:
            return
        wrong(same, "a step that was asked again did something")
        wrong(request.number == last or not step.claims, "an old step has claims")
        for worker in before.workers:
            if worker.asked == request and worker.answer is not None:
                wrong(_to_repeat(step) == worker.answer, "the same step has another answer")

    def _go_on(self, state: State) -> None:
        """Go on without a fault until all jobs have ended, or a state from which they do."""
        on_way: set[bytes] = set()
        while not state.over and state.name not in self._well:
            self._wrong(state)(bool(state.next) and state.name not in on_way, "jobs are stuck")
            on_way.add(state.name)
            state = self._seen[state.next]
        self._well |= on_way

    def _wrong(self, state: State) -> Callable[[bool, str], None]:
        def wrong(holds: bool, what: str) -> None:
            if not holds:
                lines = []
                left = state.steps
                while left:
                    left, one = left
                    lines.append(one)
                raise Wrong("\n".join([what, *reversed(lines)]))

        return wrong


def _decoded(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_decoded(one) for one in answer]
    return answer.decode() if isinstance(answer, bytes) else answer
