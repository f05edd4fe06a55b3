"""Forks workers that are killed: ``python -m tests.durable.kill_program KIND ADDRESS LOG``.

It reads lines: ``start`` forks a worker and prints its pid, ``reap PID`` waits for its end. A fork
costs milliseconds, where a new interpreter costs a second. At the end of its input it kills the
workers that are left.

Of the kind ``family``, the address is a file, which a parent serves that is killed, too: ``parent``
forks it, and prints its pid. The workers after that are its children, as the command starts them.

A worker writes a line into the log when a body begins and when it ends: ``begin``, or ``end``, or
``late``, or ``cut`` if it was cancelled; job, fence, session, payload, lane, pid, and the monotonic
time, which is the same for all processes. It writes ``spent`` when the body got its estimate from
the quota of a tenant, and ``used`` before it settles that to the lower amount that it used.

About the budget of a month it writes more: ``asks``, then ``refused``, or ``got`` its estimate,
``settles`` that to what was used, less or more, and ``settled``. A handler that submits children
writes ``parent`` and ``parted`` at its begin and its end.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from trio_lanes import RateLimit
from trio_lanes.command._worker import WorkerOptions, run_worker
from trio_lanes.durable import (
    BudgetSpentError,
    DurableLanes,
    PostgresStore,
    RetryPolicy,
    SqliteStore,
    Store,
    StoreUnavailableError,
    ValkeyStore,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._wire.client import ServedStoreClient
from trio_lanes.durable._wire.sockets import connect_unix, serve_unix

TENANTS = 3
SPENDS_EVERY = 4
CAP = 30
"""How much all bodies of a tenant may spend: less than they ask for."""
ESTIMATE, USED = 3, 2
MONTHS = 2
MONTH_CAP = 12
"""How much all bodies may spend of each budget of a month, and more as it is granted."""
ZONE = os.environ.get("KILLS_ZONE", "UTC")
QUOTAS = {
    "tenant:*": RateLimit(CAP, per=1e6, unit="tokens", algorithm="sliding"),
    "month:*": RateLimit(MONTH_CAP, per="month", unit="tokens", timezone=ZONE),
}
FAMILY = 1_000_000
"""The payloads of children, which spend nothing, are from here up."""
CHILDREN = 3
LANES = {"main": 12, "few": 2, "family": 2}  # four workers have a capacity of 16
LEASE = float(os.environ.get("KILLS_LEASE", "3"))
AHEAD = float(os.environ.get("KILLS_CLOCK", "0"))
"""Seconds by which the wall clock of every second process is ahead."""
STALLED = 0.1 * LEASE
"""Seconds by which the end of a body is late only if its process has stood still: its lease may be
over then, and its job may run elsewhere."""
SLOW_END = 3.0
"""Seconds that some bodies take to end when the parent of their process was killed."""
CAPACITY = 4
RESULT_TTL = 1e9
"""The checks read all jobs at the end, also if clocks have been hours ahead."""


def tenant_of(payload: int) -> str:
    return f"tenant:{payload // SPENDS_EVERY % TENANTS}"


def month_of(payload: int) -> str:
    return f"month:{payload // SPENDS_EVERY % MONTHS}"


def used_of(payload: int) -> int:
    """Return what a body has used in the end of its budget of a month."""
    return (ESTIMATE - 1, ESTIMATE, ESTIMATE + 2)[payload // SPENDS_EVERY // MONTHS % 3]


def store_of(kind: str, address: str) -> Store:
    if kind == "postgres":
        dsn, _, namespace = address.rpartition("#")
        return PostgresStore(dsn, namespace=namespace, patience=min(5.0, 0.8 * LEASE))
    if kind == "valkey":
        url, _, namespace = address.rpartition("#")
        return ValkeyStore(url, namespace=namespace, patience=min(5.0, 0.8 * LEASE))
    if kind == "family":  # its process gets the parent's store in place of it
        return SqliteStore(address)
    patience = min(5.0, 0.8 * LEASE)
    return ServedStoreClient(
        lambda: connect_unix(address), name="the served file", patience=patience
    )


@asynccontextmanager
async def working(kind: str, address: str, log: str) -> AsyncIterator[DurableLanes]:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, payload: Any) -> None:
        run = current_job()
        assert run is not None
        words = (run.id, run.fence, run.session, payload, run._claim.lane, os.getpid())
        line = " ".join(map(str, (what, *words, time.monotonic())))
        os.write(file, f"{line}\n".encode())

    opened: list[DurableLanes] = []

    async def spend(payload: int) -> None:
        quota = opened[0].quota(tenant_of(payload))
        with suppress(BudgetSpentError, StoreUnavailableError):
            spent = await quota.spend(tokens=ESTIMATE, wait=False)
            note("spent", payload)
            note("used", payload)
            await spent.settle(tokens=USED)

    async def spend_of_month(payload: int) -> None:
        quota = opened[0].quota(month_of(payload))
        note("asks", payload)
        with suppress(StoreUnavailableError):
            try:
                with trio.move_on_after(0.05) as waiting:
                    spent = await quota.spend(tokens=ESTIMATE, wait=payload % 3 > 0)
            except BudgetSpentError:
                waiting.cancelled_caught = True
            if waiting.cancelled_caught:
                note("refused", payload)
                return
            note("got", payload)
            note("settles", payload)
            await spent.settle(tokens=used_of(payload))
            note("settled", payload)

    async def family(number: int) -> Any:
        run = current_job()
        assert run is not None
        note("parent", number)
        try:
            async with run.children() as jobs:
                for n in range(CHILDREN):  # the first and the third are one after the other
                    payload, session = FAMILY + number * CHILDREN + n, f"child-{number}-{n % 2}"
                    await jobs.submit("job", payload, session=session, lane="main")
                return await jobs.wait_all(), run.children_ended
        finally:
            note("parted", number)

    async def job(payload: Any) -> Any:
        if payload is None:  # of the schedule
            return None
        note("begin", payload)
        how, seconds, began = "cut", 0.02 + payload % 7 * 0.02, time.monotonic()
        try:
            if payload < FAMILY and payload % SPENDS_EVERY == 0:
                await spend(payload)
            elif payload < FAMILY and payload % SPENDS_EVERY == 2:
                await spend_of_month(payload)
            asked = time.monotonic() - began
            await trio.sleep(seconds)
            slept = time.monotonic() - began - asked
            how = "end" if asked < 0.5 * LEASE and slept < seconds + STALLED else "late"
        finally:
            if kind == "family" and how == "cut" and payload % 3 == 0:  # its end takes a while
                with trio.CancelScope(shield=True):
                    await trio.sleep(SLOW_END)
            note(how, payload)
        return payload

    async with open_durable_lanes(
        store_of(kind, address),
        {"job": job, "family": family},
        LANES,
        capacity=CAPACITY,
        lease_ttl=LEASE,
        max_crashes=1_000_000,
        retry=RetryPolicy(max_attempts=1_000_000, backoff=(0.1, 1.0)),
        result_ttl=RESULT_TTL,
        quotas=QUOTAS,
    ) as lanes:
        opened.append(lanes)
        yield lanes


async def work(kind: str, address: str, log: str) -> None:
    async with working(kind, address, log):
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(aiter(signals))  # then the block is left, which drains


def run(kind: str, address: str, log: str) -> bool:
    """Work until SIGTERM; False if the store was away."""
    ended = False
    try:
        trio.run(work, kind, address, log)
        ended = True
    except* StoreUnavailableError:
        pass
    return ended


def application() -> Any:
    """Return the lanes of a child of a parent, for the command."""
    return working("family", os.environ["KILLS_STORE"], os.environ["KILLS_LOG"])


LINES = 16
"""How many workers a parent can have, those included that follow on others."""


class Parent:
    """A parent that serves a file, and its lines to workers that are not started yet."""

    def __init__(self, store: str, number: int) -> None:
        self._store, self._socket = store, f"{store}.served-{number}"
        pairs = [socket.socketpair() for _ in range(LINES)]
        self._lines = [theirs for _, theirs in pairs]
        reads, says = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                for theirs in self._lines:
                    theirs.close()
                trio.run(self._serve, says)
            finally:
                os._exit(1)
        for ours, _ in pairs:
            ours.close()
        os.close(says)
        assert os.read(reads, 1) == b"s"
        os.close(reads)

    async def _serve(self, says: int) -> None:
        async with host(SqliteStore(self._store, patience=60)) as owner:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_unix, self._socket, owner.guest)
                os.write(says, b"s")

    def work(self, log: str) -> None:
        """Be a worker of it; the line of the next one is the one before."""
        line = self._lines.pop()
        for other in self._lines:
            other.close()
        os.environ |= {"KILLS_STORE": self._store, "KILLS_LOG": log}
        options = WorkerOptions(
            application="tests.durable.kill_program:application",
            grace=30,
            cancel_grace=5,
            line=line.detach(),
            store=Path(self._store),
            served=self._socket,
        )
        os._exit(run_worker(options))

    def started(self) -> None:
        """Forget the line of a worker that was forked."""
        self._lines.pop().close()

    def close(self) -> None:
        for line in self._lines:
            line.close()


def set_clock_ahead() -> None:
    """Let the wall clock of this process be wrong."""
    real = time.time
    time.time = lambda: real() + AHEAD


def main(kind: str, address: str, log: str) -> None:
    children: set[int] = set()
    parent: Parent | None = None
    parents = 0
    try:
        for line in sys.stdin:
            command, *pids = line.split()
            if command == "parent":
                if parent is not None:
                    parent.close()
                parents += 1
                parent = Parent(address, parents)
                children.add(parent.pid)
                print(parent.pid, flush=True)
            elif command == "start":
                child = os.fork()
                if not child:
                    if os.getpid() % 2:
                        set_clock_ahead()
                    try:
                        if parent is not None:
                            parent.work(log)
                        while not run(kind, address, log):
                            time.sleep(0.2)  # as a supervisor, if its store is away
                    finally:
                        os._exit(1)
                if parent is not None:
                    parent.started()
                children.add(child)
                print(child, flush=True)
            else:
                os.waitpid(int(pids[0]), 0)
                children.remove(int(pids[0]))
                print(pids[0], flush=True)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
