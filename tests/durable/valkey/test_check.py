"""The check of a namespace whose keys were changed from outside: it finds each contradiction."""

from typing import Any

import pytest
import trio

from tests.durable.conformance.bench import Played, opening
from trio_lanes.durable import CheckReport, SubmittedJob, ValkeyStore
from trio_lanes.durable.acts.inspection import AllInstances, Check, Repair

from .server import Server

pytestmark = pytest.mark.real_processes

CHANGE = """
local job = cmsgpack.unpack(redis.call('GET', KEYS[1]))
job[ARGV[1]] = ARGV[2] ~= 'nil' and (tonumber(ARGV[2]) or ARGV[2]) or nil
redis.call('SET', KEYS[1], cmsgpack.pack(job))
"""


class Keys:
    """The keys of a namespace with a run, two jobs behind it in its session, and a job without."""

    def __init__(self, server: Server, namespace: str) -> None:
        self._server = server
        self.root = f"{{{namespace}}}:"
        self.ids: list[int] = []
        self.instance = ""

    def ask(self, verb: str, key: str, *words: str | int) -> Any:
        return self._server.ask(verb, self.root + key, *words)

    def change(self, job: int, field: str, value: str | int) -> None:
        """Change a field of a record, and nothing else."""
        key = f"{self.root}j:{self.ids[job]}"
        answer = self._server.ask("EVAL", CHANGE, 1, key, field, value)
        assert not isinstance(answer, RuntimeError), answer


def not_in_its_place(keys: Keys) -> None:
    keys.ask("ZREM", "w:main", keys.ids[3])


def not_ready(keys: Keys) -> None:
    keys.change(3, "ready", "nil")


def ready_though_it_runs(keys: Keys) -> None:
    keys.change(0, "ready", 5)


def ready_behind_another(keys: Keys) -> None:
    keys.change(1, "ready", 5)


def runs_behind_another(keys: Keys) -> None:
    keys.change(1, "state", "running")
    keys.change(1, "instance", keys.instance)


def without_its_instance(keys: Keys) -> None:
    keys.ask("DEL", f"i:{keys.instance}")


def without_its_lane(keys: Keys) -> None:
    keys.change(3, "lane", "elsewhere")


def where_it_does_not_belong(keys: Keys) -> None:
    keys.ask("ZADD", "h:main", 1, keys.ids[3])


def without_a_record(keys: Keys) -> None:
    keys.ask("DEL", f"j:{keys.ids[3]}")


async def check(server: Server, namespace: str, spoil: Any, problem: str, repaired: bool) -> None:
    store = Played(ValkeyStore(server.url, namespace=namespace))
    async with store.store.open(opening()):
        await store.join()
        keys = Keys(server, namespace)
        jobs = [SubmittedJob(name="echo", session="s") for _ in range(3)]
        keys.ids = await store.enqueue([*jobs, SubmittedJob(name="other")])
        assert len((await store.step([], 9)).claims) == 1
        (info,) = await store.look(AllInstances())
        keys.instance = info.id
        assert await store.look(Check()) == CheckReport((), 0)
        spoil(keys)
        report = await store.look(Check())
        assert any(problem in line for line in report.problems), report
        assert report.repaired == 0
        assert await store.do(Repair()) >= repaired
        await store.do(Repair())
        assert (not (await store.look(Check())).problems) is repaired


CASES = [
    (not_in_its_place, "is not in its place in", True),
    (not_ready, "is a waiting head, and is on no ready list", True),
    (ready_though_it_runs, "is on a ready list, though it is running", True),
    (ready_behind_another, "is on a ready list, though other jobs", True),
    (runs_behind_another, "runs, though other jobs", False),
    (without_its_instance, "runs on an instance that is not in the store", True),
    (without_its_lane, "which is not in the store", False),
    (where_it_does_not_belong, "where it does not belong", True),
    (without_a_record, "has no record", True),
]


@pytest.mark.parametrize(("spoil", "problem", "repaired"), CASES, ids=lambda one: str(one)[:20])
def test_a_check_finds_what_was_changed_from_outside(
    server: Server, namespace: str, spoil: Any, problem: str, repaired: bool
) -> None:
    trio.run(check, server, namespace, spoil, problem, repaired)


def test_a_check_reports_no_job_that_its_own_repair_has_moved(
    server: Server, namespace: str
) -> None:
    async def test() -> None:
        store = Played(ValkeyStore(server.url, namespace=namespace))
        async with store.store.open(opening(max_crashes=1)):
            await store.join()
            await store.enqueue([SubmittedJob(name="echo", session="s") for _ in range(2)])
            assert len((await store.step([], 9)).claims) == 1
            (info,) = await store.look(AllInstances())
            server.ask("DEL", f"{{{namespace}}}:i:{info.id}")
            report = await store.look(Check())
            assert [line.split()[2] for line in report.problems] == ["runs"]
            await store.do(Repair())  # the run becomes dead, and the other job a head
            assert await store.look(Check()) == CheckReport((), 0)

    trio.run(test)
