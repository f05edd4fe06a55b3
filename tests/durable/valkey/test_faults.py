"""Faults between an instance and its Valkey server: nothing accepted is lost."""

import itertools
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.durable.cancelled import cancel_calls, cancel_open, submitted_at_last
from tests.durable.conformance.bench import Played, opening, ticket
from tests.support.chaos import number
from trio_lanes.durable import (
    DurableState,
    Finish,
    StoreError,
    StoreUnavailableError,
    Submission,
    SubmittedJob,
    Succeeded,
    ValkeyStore,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._contract import waiter
from trio_lanes.durable._valkey.script import Script
from trio_lanes.durable.acts.inspection import Check, StatusOf
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.runs import Compare

from .clock import EPOCH, KEY, on_test_time
from .proxy import Proxy
from .server import Server, programs

pytestmark = pytest.mark.real_processes


class Echo:
    """A handler that notes how often it ran each payload."""

    def __init__(self) -> None:
        self.ran = Counter[int]()

    async def __call__(self, payload: Any) -> Any:
        self.ran[payload] += 1
        await trio.lowlevel.checkpoint()
        return payload


async def submit_all(lanes: Any, numbers: range) -> list[Any]:
    """Submit jobs, each until it is accepted."""
    jobs = []
    for n in numbers:
        while True:
            try:
                jobs.append(await lanes.submit("echo", n, session=f"s{n % 3}", key=str(n)))
                break
            except StoreUnavailableError:
                await trio.sleep(0.02)
    return jobs


async def result_of(job: Any) -> Any:
    """Wait for a job, while the store may be away."""
    while True:
        try:
            return await job.wait()
        except StoreUnavailableError:
            await trio.sleep(0.02)


@pytest.mark.parametrize("how", ["function flush", "client kill", "stop", "kill", "restart twice"])
async def test_connections_and_servers_that_end_lose_nothing(
    always_server: Server, namespace: str, how: str
) -> None:
    server, echo = always_server, Echo()
    store = ValkeyStore(server.url, namespace=namespace)
    with trio.fail_after(120):
        async with open_durable_lanes(store, {"echo": echo}) as lanes:
            first = await submit_all(lanes, range(20))
            if how == "function flush":
                server.ask("FUNCTION", "FLUSH")
            elif how == "client kill":
                server.ask("CLIENT", "KILL", "TYPE", "normal")
                server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            else:
                for _ in range(1 + (how == "restart twice")):
                    server.stop(signal.SIGTERM if how == "stop" else signal.SIGKILL)
                    await trio.to_thread.run_sync(server.start)
            second = await submit_all(lanes, range(20, 40))
            assert [await result_of(job) for job in first + second] == list(range(40))
            assert set(echo.ran) == set(range(40))
            assert (await lanes.check()).problems == ()
            assert [job for job in await lanes.jobs() if job.crashes] == []


async def test_an_answer_that_is_lost_is_asked_for_again_and_the_act_is_done_once(
    server: Server, namespace: str
) -> None:
    proxy = Proxy(server.port)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        store = ValkeyStore(proxy.url, namespace=namespace)
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            await lanes.submit("a", key="before")
            proxy.swallows = True
            async with trio.open_nursery() as submitting:
                submitting.start_soon(lanes.submit, "a")
                while proxy.connections < 2:  # noqa: ASYNC110 - another task connects
                    await trio.sleep(0.01)
                proxy.swallows = False
            assert len(await lanes.jobs()) == 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_cuts_lost_requests_and_lost_answers_at_random_lose_and_double_nothing(
    server: Server, namespace: str
) -> None:
    dice, echo, most = random.Random(1), Echo(), number("CUTS", 40)
    proxies = [Proxy(server.port) for _ in range(3)]

    async def disturb(scope: trio.CancelScope) -> None:
        for _ in range(most):
            await trio.sleep(dice.random() * 0.05)
            await dice.choice(proxies).disturb(dice)
        scope.cancel()

    async def work(proxy: Proxy, lanes: list[Any], *, task_status: Any) -> None:
        store = ValkeyStore(proxy.url, namespace=namespace, patience=24)
        async with open_durable_lanes(store, {"echo": echo}, {"main": 9}, grace=0) as mine:
            lanes.append(mine)
            task_status.started()
            await trio.sleep_forever()

    jobs: list[Any] = []
    async with trio.open_nursery() as carrying, trio.open_nursery() as nursery:
        lanes: list[Any] = []
        for proxy in proxies:
            await carrying.start(proxy.serve)
            await nursery.start(work, proxy, lanes)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as disturbing:
                disturbing.start_soon(disturb, scope)
                for n in itertools.count():
                    await trio.sleep(0.002)
                    key = {"session": f"s{n % 7}", "key": str(n)}
                    with trio.CancelScope(shield=True):
                        jobs.append(await dice.choice(lanes).submit("echo", n, **key))
        with trio.fail_after(120):
            assert [await result_of(job) for job in jobs] == list(range(len(jobs)))
            assert (await lanes[0].check()).problems == ()
        assert echo.ran == Counter(range(len(jobs)))
        assert jobs
        print(f"{most} faults, {len(jobs)} jobs, {sum(one.connections for one in proxies)} links")
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            while nursery.child_tasks:  # noqa: ASYNC110 - they sign off over the proxies
                await trio.sleep(0.01)
        carrying.cancel_scope.cancel()


async def test_a_call_whose_answers_stay_lost_is_unknown_and_the_ticket_decides(
    server: Server, namespace: str
) -> None:
    proxy = Proxy(server.port)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        store = ValkeyStore(proxy.url, namespace=namespace, patience=2)
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            mine = ticket()
            proxy.swallows = True
            with pytest.raises(StoreUnavailableError) as caught:
                await store.do(Enqueue([SubmittedJob(name="a")]), mine)
            assert caught.value.unknown
            proxy.swallows = False
            with trio.fail_after(60):
                while True:
                    try:
                        (id,) = await store.do(Enqueue([SubmittedJob(name="a")]), mine)
                        break
                    except StoreUnavailableError:
                        await trio.sleep(0.02)
            assert [job.id for job in await lanes.jobs()] == [id]
        nursery.cancel_scope.cancel()


async def test_a_step_is_not_sent_after_one_that_got_no_answer(
    own_server: Server, namespace: str
) -> None:
    """Else the first could not be asked again: the server remembers the last answer alone."""
    errors: dict[int, StoreUnavailableError] = {}
    store = ValkeyStore(own_server.url, namespace=namespace, patience=4)

    async def fail(number: int) -> None:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.step(number, [], 1)
        errors[number] = caught.value
        os.kill(own_server.pid, signal.SIGCONT)

    async with store.open(attrs.evolve(opening(), lease_ttl=60.0)):
        await store.join(ticket())
        ids = list(await store.do(Enqueue([SubmittedJob(name="echo")] * 2), ticket()))
        os.kill(own_server.pid, signal.SIGSTOP)
        async with trio.open_nursery() as asking:
            asking.start_soon(fail, 1)
            await trio.sleep(2)  # the second is not overdue when the server goes on
            asking.start_soon(fail, 2)
        assert (errors[1].unknown, errors[2].unknown) == (True, False)
        with trio.fail_after(60):
            while True:
                try:
                    step = await store.step(1, [], 1)
                    break
                except StoreUnavailableError:
                    await trio.sleep(0.02)
        assert [claim.id for claim in step.claims] == ids[:1]
        step = await store.step(3, [], 1)
        assert [claim.id for claim in step.claims] == ids[1:]


async def test_steps_that_are_asked_at_once_are_taken_one_after_the_other(
    server: Server, namespace: str
) -> None:
    claims: dict[int, list[int]] = {}
    ids: list[int] = []
    store = ValkeyStore(server.url, namespace=namespace)

    async def submit() -> None:
        ids.extend(await store.do(Enqueue([SubmittedJob(name="echo")] * 3), ticket()))

    async def ask(number: int) -> None:
        step = await store.step(number, [], 1)
        claims[number] = [claim.id for claim in step.claims]

    async with store.open(opening()):
        await store.join(ticket())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            await trio.testing.wait_all_tasks_blocked(0.0)
            for number in (1, 2, 3):
                nursery.start_soon(ask, number)
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
    assert [claims[number] for number in (1, 2, 3)] == [[id] for id in ids]


async def test_a_server_that_does_not_answer_is_left_after_the_patience(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.submit("a")
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            with trio.fail_after(30), pytest.raises(StoreUnavailableError) as caught:
                await lanes.submit("a")
            assert caught.value.unknown
            with trio.fail_after(30), pytest.raises(StoreUnavailableError):
                await lanes.submit("a")
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        await submitted_at_last(lanes)


async def test_a_server_that_is_busy_for_longer_than_the_patience_is_unavailable_and_then_goes_on(
    own_server: Server, namespace: str
) -> None:
    echo = Echo()
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        first = await submit_all(lanes, range(5))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, own_server.ask, "DEBUG", "SLEEP", 5)
            with trio.fail_after(30), pytest.raises(StoreUnavailableError):
                while True:
                    await lanes.statistics()
        second = await submit_all(lanes, range(5, 10))
        assert [await result_of(job) for job in first + second] == list(range(10))
        assert echo.ran == Counter(range(10))
        assert (await lanes.check()).problems == ()


async def test_a_server_without_memory_is_unavailable_and_then_goes_on(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    async with open_durable_lanes(store, {"echo": Echo()}) as lanes:
        own_server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailableError) as caught:
            await lanes.submit("echo", 1)
        assert not caught.value.unknown
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        (job,) = await submit_all(lanes, range(1))
        assert await result_of(job) == 0


async def test_a_server_that_becomes_a_replica_is_unavailable_until_it_is_none(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    async with open_durable_lanes(store, {"echo": Echo()}) as lanes:
        own_server.ask("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(StoreUnavailableError, match=r"replica|READONLY|read only"):
            await lanes.submit("echo", 1)
        own_server.ask("REPLICAOF", "NO", "ONE")
        (job,) = await submit_all(lanes, range(1))
        assert await result_of(job) == 0


async def test_a_namespace_that_vanishes_ends_the_lanes(own_server: Server, namespace: str) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace)
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreError, match="are gone"), flatten_subgroups=True, allow_unwrapped=True
    ):
        with trio.fail_after(60):
            async with open_durable_lanes(store, {"echo": Echo()}) as lanes:
                own_server.ask("FLUSHALL")
                with pytest.raises(StoreError, match="are gone"):
                    await lanes.submit("echo", 1)
                with pytest.raises(StoreError, match="are gone"):
                    await lanes.submit("echo", 1)
                await trio.sleep_forever()


async def test_a_submission_that_no_replica_has_is_not_acknowledged(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, ack="replica", patience=5)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        with pytest.raises(StoreUnavailableError, match="no replica has confirmed") as caught:
            await lanes.submit("a")
        assert caught.value.unknown
        replica = Server(programs()["valkey"], replicaof=f"127.0.0.1 {own_server.port}")
        try:
            await trio.to_thread.run_sync(replica.start)
            await submitted_at_last(lanes)
        finally:
            replica.remove()


@pytest.mark.needs("Valkey")
async def test_after_a_failover_to_older_data_instances_and_server_agree_again(
    namespace: str,
) -> None:
    server = Server(programs()["valkey"], appendonly="no")
    try:
        await trio.to_thread.run_sync(server.start)
        store = Played(ValkeyStore(server.url, namespace=namespace))
        async with store.store.open(opening()), trio.open_nursery() as nursery:
            await store.join()
            both = [SubmittedJob(name="echo", payload=f"{n}") for n in range(2)]
            ids = await store.enqueue(both)
            (first,) = (await store.step([], 1)).claims
            server.ask("SAVE")
            (second,) = (await store.step([], 1)).claims
            await store.step([Finish(first.id, first.fence, Succeeded("1"))], 0)
            (late,) = await store.enqueue([SubmittedJob(name="echo")])
            server.stop(signal.SIGKILL)
            await trio.to_thread.run_sync(server.start)
            # the older data: the first job runs here, the second waits, the third is unknown
            lost = await store.do(Compare([second.fence], second.fence, [], 0))
            assert lost[:2] == ((second.fence,), ())
            assert await store.look(StatusOf(late)) is None
            claims = (await store.step([], 9)).claims
            assert sorted(claim.id for claim in claims) == ids
            assert min(claim.fence for claim in claims) > max(second.fence, late)
            assert [claim.crashes for claim in claims] == [0, 0]
            (new,) = await store.enqueue([SubmittedJob(name="echo")])
            assert new > late
            stale = await store.step([Finish(second.id, second.fence, Succeeded("1"))], 0)
            assert stale.stale == (second.fence,)
            assert (await store.look(Check())).problems == ()
            await store.leave()
            nursery.cancel_scope.cancel()
    finally:
        server.remove()


async def test_a_stale_replica_that_takes_over_loses_what_it_lacked_and_nothing_else(
    own_server: Server, namespace: str
) -> None:
    ran: list[int] = []
    fences: list[int] = []

    async def note(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        ran.append(payload)
        fences.append(run.fence)
        await trio.lowlevel.checkpoint()
        return payload

    replica = Server(programs()["valkey"], replicaof=f"127.0.0.1 {own_server.port}")
    proxy = Proxy(own_server.port)
    try:
        await trio.to_thread.run_sync(replica.start)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            store = ValkeyStore(proxy.url, namespace=namespace)
            async with open_durable_lanes(store, {"echo": note}) as lanes:
                kept = await submit_all(lanes, range(30))
                assert [await result_of(job) for job in kept] == list(range(30))
                with trio.fail_after(60):
                    while not replica.ask("EXISTS", f"{{{namespace}}}:j:{kept[-1].id}"):
                        await trio.to_thread.run_sync(time.sleep, 0.02)
                replica.ask("REPLICAOF", "NO", "ONE")  # from now on it is stale
                lacked = await submit_all(lanes, range(30, 40))
                assert [await result_of(job) for job in lacked] == list(range(30, 40))
                proxy.port = replica.port
                proxy.cut()
                later = await submit_all(lanes, range(40, 60))
                assert [await result_of(job) for job in later] == list(range(40, 60))
                assert min(job.id for job in later) > max(job.id for job in lacked)
                assert fences[:40] == sorted(fences[:40])
                assert min(fences[40:]) > max(fences[:40])
                jobs = [job.id for job in await lanes.jobs(limit=-1)]
                assert jobs == [job.id for job in kept + later]  # ten are lost, and no other
                for session in range(3):
                    mine = list(dict.fromkeys(n for n in ran if n % 3 == session))
                    assert mine == sorted(mine)
                assert (await lanes.check()).problems == ()
            nursery.cancel_scope.cancel()
    finally:
        replica.remove()


async def test_a_restart_that_loses_nothing_cancels_nothing(
    always_server: Server, namespace: str
) -> None:
    gate, begun = trio.Event(), trio.Event()

    async def wait(payload: Any) -> str:
        begun.set()
        await gate.wait()
        return "done"

    store = ValkeyStore(always_server.url, namespace=namespace)
    with trio.fail_after(60):
        async with open_durable_lanes(store, {"wait": wait}) as lanes:
            job = await lanes.submit("wait")
            await begun.wait()
            always_server.stop(signal.SIGKILL)
            await trio.to_thread.run_sync(always_server.start)
            await submit_until(lanes)
            gate.set()
            assert await result_of(job) == "done"
            status = await job.status()
            assert (status.state, status.attempt) == (DurableState.SUCCEEDED, 1)


async def test_no_lease_goes_by_while_the_server_is_away(
    always_server: Server, namespace: str
) -> None:
    def set_clock(seconds: int) -> None:
        always_server.ask("HSET", KEY, "seconds", EPOCH + seconds, "micros", 0)

    set_clock(0)
    first, other = (
        Played(on_test_time(ValkeyStore(always_server.url, namespace=namespace))) for _ in range(2)
    )
    async with first.store.open(opening()), other.store.open(opening()):
        await first.join()
        await other.join()
        await first.enqueue([SubmittedJob(name="echo")])
        (claim,) = (await first.step([], 1)).claims
        always_server.stop(signal.SIGKILL)
        await trio.to_thread.run_sync(always_server.start)
        set_clock(100)  # far longer than a lease
        with trio.fail_after(60):
            while True:
                try:
                    assert await other.beat()
                    break
                except StoreUnavailableError:
                    await trio.sleep(0.02)
        assert await first.beat()
        end = Finish(claim.id, claim.fence, Succeeded("1"))
        assert (await first.step([end], 0)).stale == ()
        await first.leave()
        await other.leave()


async def submit_until(lanes: Any) -> None:
    """Submit a job as soon as the store is there."""
    while True:
        try:
            await lanes.submit("wait", delay=3600.0)
            return
        except StoreUnavailableError:
            await trio.sleep(0.02)


async def test_calls_that_are_cancelled_are_done_as_a_whole_or_not_at_all(
    server: Server, namespace: str
) -> None:
    await cancel_calls(ValkeyStore(server.url, namespace=namespace))


@pytest.mark.parametrize("worker", [True, False])
def test_opening_that_is_cancelled_at_any_step_ends(
    server: Server, namespace: str, worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cancel_open(lambda: ValkeyStore(server.url, namespace=namespace), worker=worker)
    assert [record for record in caplog.records if record.exc_info] == []


def test_opening_that_is_cancelled_while_the_server_stands_still_ends_within_the_patience(
    own_server: Server, namespace: str
) -> None:
    cancel_open(
        lambda: ValkeyStore(own_server.url, namespace=namespace, patience=0.3),
        stand_still=lambda: own_server.send(signal.SIGSTOP),
        go_on=lambda: own_server.send(signal.SIGCONT),
    )


async def test_acts_that_wait_when_the_store_is_closed_are_unavailable(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=60)
    caught: list[StoreUnavailableError] = []

    async def submit() -> None:
        with pytest.raises(StoreUnavailableError, match="closed") as error:
            await store.do(Enqueue([SubmittedJob(name="a")]), ticket())
        caught.append(error.value)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with store.open(opening(names=())):
                os.kill(own_server.pid, signal.SIGSTOP)
                nursery.start_soon(submit)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(submit)
                await trio.testing.wait_all_tasks_blocked()
    os.kill(own_server.pid, signal.SIGCONT)
    assert sorted(error.unknown for error in caught) == [False, True]


@pytest.mark.parametrize(
    "text", ["this is no Lua", "error('early')", "local function run() error('late') end"]
)
async def test_a_script_that_fails_is_an_error_of_the_store(
    server: Server, namespace: str, text: str
) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    store._script = Script(text)
    with pytest.raises(StoreError, match="failed"):
        async with store.open(opening(names=())):
            pass


async def test_a_job_of_another_instance_is_waited_for_by_several_tasks(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "MAX_KNOWN", 1)
    worker, asker = (ValkeyStore(server.url, namespace=namespace) for _ in range(2))
    echo = Echo()
    with trio.fail_after(60):
        async with (
            open_durable_lanes(worker, {"echo": echo}) as lanes,
            open_durable_lanes(asker, {}, worker=False) as asking,
            trio.open_nursery() as nursery,
        ):
            await lanes.pause("main")
            jobs = await lanes.submit_many([Submission(name="echo", payload=n) for n in range(3)])
            await lanes.submit("echo", delay=60.0)
            with trio.move_on_after(0.05):
                await asking.job(jobs[0].id).wait()
            for job in jobs:
                nursery.start_soon(asking.job(job.id).wait)
                nursery.start_soon(job.wait)
            with trio.move_on_after(0.05):
                await asking.job(jobs[0].id).wait()
            asker._waiters.all_changed()  # as after a lost message
            await trio.testing.wait_all_tasks_blocked()
            await lanes.resume("main")


async def test_a_result_that_is_too_long_for_a_message_is_read(
    server: Server, namespace: str
) -> None:
    async with open_durable_lanes(
        ValkeyStore(server.url, namespace=namespace), {"echo": Echo()}
    ) as lanes:
        text = "x" * 20_000
        assert await (await lanes.submit("echo", text)).wait() == text
