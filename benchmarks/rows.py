"""The table's rows: what is measured, by whom, how often, and what lanes are to reach.

Each row's first contender is lanes; every ratio is lanes divided by the other one, in the same
round. A row's id begins with the letter by which ``--rows`` chooses it.
"""

from __future__ import annotations

import attrs

NAMES = {
    "lanes": "trio-lanes",
    "lanes.plain": "trio-lanes, without a session",
    "aio.lanes": "trio-lanes on asyncio: trio_lanes.aio",
    "seen.mounted": "trio-lanes under a monitor, no page open",
    "seen.viewed": "trio-lanes under a monitor, one page open",
    "seen.prometheus": "trio-lanes with PrometheusInstrument",
    "trio.bare": "Trio: bare start_soon",
    "trio.locks": "Trio by hand: keyed Lock + limiter",
    "trio.tickets": "Trio by hand: keyed FIFO tickets + limiter",
    "trio.drainers": "Trio by hand: a drainer per live key",
    "trio.spawned": "Trio: limiter in a spawned task",
    "trio.inline": "Trio: Lock + limiter in the caller's task",
    "trio.heap": "Trio by hand: heap + one task",
    "asyncio.locks": "asyncio by hand: keyed Lock + Semaphore",
    "asyncio.drainers": "asyncio by hand: a drainer per live key",
    "asyncio.spawned": "asyncio: Semaphore in a spawned task",
    "asyncio.queue": "asyncio: PriorityQueue + one task",
    "asyncio.aiojobs": "aiojobs + keyed Lock",
    "asyncio.semaphore": "asyncio: a Semaphore, no keys",
    "asyncio.aiolimiter": "aiolimiter, no keys",
    "node.p-queue-10": "p-queue 10",
    "node.p-queue-10-heap": "p-queue 10 with a heap as queueClass",
    "node.p-queue-9": "p-queue 9",
    "node.p-limit": "p-limit",
    "node.fastq": "fastq",
    "durable.full": "durable lanes, SQLite, synchronous FULL",
    "durable.normal": "durable lanes, SQLite, synchronous NORMAL",
    "durable.served": "durable lanes, SQLite, synchronous FULL, served to two processes",
    "durable.postgres": "durable lanes, PostgreSQL",
    "durable.postgres-2": "durable lanes, PostgreSQL, two processes",
    "durable.valkey": "durable lanes, Valkey, appendfsync everysec",
    "durable.valkey-2": "durable lanes, Valkey, appendfsync everysec, two processes",
    "procrastinate.postgres": "procrastinate, PostgreSQL",
    "huey.full": "huey, SQLite, fsync",
    "huey.off": "huey, SQLite, without fsync",
    "node.bullmq": "BullMQ, Valkey, appendfsync everysec",
    "node.groupmq": "GroupMQ, Valkey, appendfsync everysec",
    "taskiq.valkey": "taskiq, Valkey, appendfsync everysec",
    "streaq.valkey": "streaq, Valkey, appendfsync everysec",
}


@attrs.frozen
class Target:
    text: str
    limit: float
    against: str | None = None
    """The peer that the ratio is to; None: the row's own unit is limited."""
    subject: str = "lanes"
    workload: str | None = None
    """The workload of the subject; None: that of the row."""


@attrs.frozen
class Row:
    id: str
    title: str
    workload: str
    n: int
    rounds: int
    contenders: tuple[str, ...]
    unit: str = "µs/job"
    quick_n: int = 10_000
    also: tuple[tuple[str, str, str], ...] = ()
    """(contender, workload, what that does differently): measured beside the others."""
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()


@attrs.frozen
class Growth:
    """Time for a job as the number of jobs grows, from which the exponent follows."""

    id: str
    title: str
    workload: str
    contenders: tuple[tuple[str, tuple[int, ...]], ...]  # (who, sizes)


SIZES = (10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000)
LINEAR = 1.25
"""An exponent up to this is linear or n log n; quadratic is 2. From 10^4 to 10^6 jobs the logarithm
alone adds 0.09. What CPython's collector and the processor's caches add is seen in a bare
`start_soon`, which is linear by construction and was measured at 1.14."""

NODE = ("node.p-queue-10", "node.p-queue-9", "node.p-limit", "node.fastq")
BY_HAND = (
    "trio.locks",
    "trio.tickets",
    "trio.drainers",
    "asyncio.locks",
    "asyncio.drainers",
    "asyncio.aiojobs",
)
LOCK_NOTE = (
    "The keyed trio.Lock does not keep the order of a session (Trio starts tasks in random "
    "order); the FIFO tickets do."
)
PRIORITY_NOTE = "p-limit, fastq, aiojobs and a bare nursery have no priorities."

ROWS: tuple[Row, ...] = (
    Row(
        "a",
        "burst: no-op jobs, ten a session, into one lane of 100",
        "burst",
        100_000,
        5,
        ("lanes", "trio.bare", *BY_HAND, *NODE),
        targets=(
            Target("at least as fast as p-queue 10", 1.0, "node.p-queue-10"),
            Target("at most 1.5 x a bare start_soon", 1.5, "trio.bare"),
            Target("at least 2 x as fast as keyed Lock + limiter", 0.5, "trio.locks"),
        ),
        notes=(LOCK_NOTE,),
    ),
    Row(
        "a.gap",
        "worst gap that another Trio task sees while the burst is served",
        "gap",
        100_000,
        3,
        ("lanes", "trio.bare", "trio.locks", "trio.drainers"),
        unit="ms",
    ),
    Row(
        "b",
        "steady: the same jobs, at most 1,000 outstanding",
        "steady",
        100_000,
        3,
        ("lanes", "trio.bare", *BY_HAND, *NODE),
        targets=(Target("at most 2.2 x a bare start_soon", 2.2, "trio.bare"),),
        notes=("A bare nursery has nothing to wait in, so that 1,000 tasks share each pass.",),
    ),
    Row(
        "c",
        "one uncontended run() after the other",
        "uncontended",
        20_000,
        5,
        (
            "lanes",
            "lanes.plain",
            "trio.spawned",
            "trio.inline",
            "asyncio.spawned",
            "asyncio.aiojobs",
            *NODE,
        ),
        quick_n=2_000,
        targets=(
            Target("at most 1.2 x limiter in a spawned task", 1.2, "trio.spawned"),
            Target("without a session: at most 1.2 x the same", 1.2, "trio.spawned", "lanes.plain"),
        ),
        notes=("aiojobs and the spawned tasks have no session; the Node queues have.",),
    ),
    Row(
        "d",
        "waiting jobs with distinct priorities, in random order, on a lane of 1",
        "priorities",
        100_000,
        3,
        (
            "lanes",
            "trio.heap",
            "asyncio.queue",
            "node.p-queue-10",
            "node.p-queue-10-heap",
            "node.p-queue-9",
        ),
        targets=(Target("at least 3 x as fast as p-queue 10", 1 / 3, "node.p-queue-10"),),
        notes=(PRIORITY_NOTE, "The two by hand have neither handles nor cancellation."),
    ),
    Row(
        "e.waiting",
        "size of a waiting job, ten a session, handle included",
        "waiting",
        20_000,
        1,
        ("lanes", "lanes.plain", "trio.locks", "asyncio.locks", *NODE),
        unit="bytes/job",
        quick_n=5_000,
        targets=(
            Target("at most 1 KB", 1024),
            Target("without a session: at most 1 KB", 1024, subject="lanes.plain"),
        ),
    ),
    Row(
        "e.alone",
        "size of a waiting job that is the only one of its session",
        "waiting_alone",
        20_000,
        1,
        ("lanes", "trio.locks", "asyncio.locks", *NODE),
        unit="bytes/job",
        quick_n=5_000,
    ),
    Row(
        "e.idle",
        "size of a session that was used and is idle",
        "idle",
        10_000,
        1,
        ("lanes", "trio.locks", "trio.drainers", "asyncio.locks", *NODE),
        unit="bytes/session",
        quick_n=2_000,
        targets=(Target("0 bytes", 0),),
    ),
    Row(
        "f",
        "sessions that come and go, a job each, at most 1,000 outstanding",
        "keys",
        1_000_000,
        1,
        ("lanes", "trio.drainers", "asyncio.locks", *NODE),
        targets=(Target("at least as fast as a drainer per live key", 1.0, "trio.drainers"),),
    ),
    Row(
        "g.clear",
        "cancel all waiting jobs by one call",
        "clear",
        100_000,
        3,
        ("lanes", "trio.locks", "asyncio.locks", "node.p-queue-10", "node.p-limit", "node.fastq"),
        notes=(
            "p-queue 9 is left out: its clear() never settles the promises of what it removes.",
        ),
    ),
    Row(
        "g.cancel",
        "cancel all waiting jobs one by one, in random order",
        "cancel",
        100_000,
        3,
        ("lanes", "trio.locks", "asyncio.locks", "node.p-queue-10", "node.p-queue-9"),
        notes=("p-limit and fastq cannot cancel one job.",),
    ),
    Row(
        "h",
        "the burst, with a job that checkpoints once",
        "checkpoint",
        100_000,
        3,
        ("lanes", "trio.bare", *BY_HAND, *NODE),
        also=tuple((who, "microtask", "microtask") for who in ("node.p-queue-10", "node.fastq")),
        targets=(
            Target("at most 1.5 x a bare start_soon of the same job", 1.5, "trio.bare"),
            Target("at least 2 x as fast as keyed Lock + limiter", 0.5, "trio.locks"),
        ),
        notes=(
            "A checkpoint is trio.lowlevel.checkpoint(), asyncio.sleep(0), and on Node "
            "setImmediate; 'microtask' is Node with the least that an await can be there.",
        ),
    ),
)

DURABLE = (
    "durable.full",
    "durable.normal",
    "durable.served",
    "durable.postgres",
    "durable.postgres-2",
    "durable.valkey",
    "durable.valkey-2",
    "huey.full",
    "huey.off",
    "procrastinate.postgres",
    "node.bullmq",
    "node.groupmq",
    "taskiq.valkey",
)
DURABLE_NOTE = (
    "Of these only durable lanes and GroupMQ keep an order. FULL, fsync and PostgreSQL survive the "
    "loss of power; NORMAL and everysec may lose the last moments; without fsync the file itself "
    "may be lost. huey takes a job out of its table before it runs it, so a crash loses what runs. "
    "procrastinate and taskiq tell their waiters before the end of the task is in the store; "
    "GroupMQ has no results, and tells the waiters of its worker's process. streaq is measured "
    "with 100 in flight alone: with one its worker ended with an error."
)

ROWS += tuple(
    Row(
        f"j.{in_flight}",
        f"durable jobs: accepted, run and waited for, {in_flight} in flight",
        f"cycles_{in_flight}",
        n,
        3,
        DURABLE if in_flight < 100 else (*DURABLE, "streaq.valkey"),
        unit="µs/cycle",
        quick_n=n // 5,
        also=(("durable.valkey-2", f"cycles_{2 * in_flight}", f"{in_flight} in flight each"),),
        targets=(
            *(
                Target(
                    f"{store}: at least {times} x {NAMES[peer].split(',')[0]}",
                    1 / times,
                    peer,
                    ours,
                )
                for store, ours, peer, times in targets
            ),
            Target(
                f"Valkey: two processes with {in_flight} each not slower, up to 2 % of noise",
                1.02,
                "durable.valkey",
                "durable.valkey-2",
                f"cycles_{2 * in_flight}",
            ),
        ),
        notes=(DURABLE_NOTE,),
    )
    for in_flight, n, targets in (
        (1, 500, (("Valkey", "durable.valkey", "node.bullmq", 1.2),)),
        (10, 2_000, (("Valkey", "durable.valkey", "node.bullmq", 1.5),)),
        (
            100,
            5_000,
            (
                ("SQLite, FULL", "durable.full", "node.bullmq", 3.5),
                ("Valkey", "durable.valkey", "node.bullmq", 2),
                ("Valkey", "durable.valkey", "node.groupmq", 1),
                ("Valkey", "durable.valkey", "taskiq.valkey", 2),
                ("Valkey", "durable.valkey", "streaq.valkey", 4),
            ),
        ),
    )
)

ROWS += (
    Row(
        "k.burst",
        "the burst, with lanes that are watched",
        "burst",
        100_000,
        5,
        ("lanes", "seen.mounted", "seen.viewed", "seen.prometheus"),
        targets=(
            Target("no page open: nothing, up to 2 % of noise", 1.02, "lanes", "seen.mounted"),
            Target("one page open: at most 5 % more", 1.05, "lanes", "seen.viewed"),
            Target("Prometheus: less than 15 % more", 1.15, "lanes", "seen.prometheus"),
        ),
    ),
    Row(
        "k.frame",
        "time for which a frame holds the loop, with waiting jobs, ten a session",
        "frame",
        100_000,
        3,
        ("seen.viewed",),
        unit="ms",
        targets=(Target("at most 3 ms", 3.0, subject="seen.viewed"),),
    ),
    Row(
        "k.memory",
        "memory of a monitor with a page open, with waiting jobs, ten a session",
        "frame_bytes",
        100_000,
        1,
        ("seen.viewed",),
        unit="MB",
        targets=(Target("at most 8 MB", 8.0, subject="seen.viewed"),),
    ),
)

ROWS += (
    Row(
        "l.burst",
        "the burst in an asyncio application",
        "burst",
        100_000,
        5,
        (
            "aio.lanes",
            "asyncio.locks",
            "asyncio.drainers",
            "asyncio.aiojobs",
            "asyncio.semaphore",
            "asyncio.aiolimiter",
            "lanes",
        ),
        targets=(
            Target("at most 0.6 x aiojobs with a keyed Lock", 0.6, "asyncio.aiojobs", "aio.lanes"),
        ),
        notes=(
            "The last line is on Trio. A limiter without keys keeps no order, and aiolimiter, with "
            "a rate that is never reached, limits no jobs at once.",
        ),
    ),
    Row(
        "l.one",
        "one uncontended run() after the other in an asyncio application",
        "uncontended",
        20_000,
        5,
        ("aio.lanes", "asyncio.spawned", "asyncio.aiojobs", "lanes"),
        quick_n=2_000,
        targets=(Target("at most 300 µs", 300.0, subject="aio.lanes"),),
        notes=("The last line is on Trio.",),
    ),
    Row(
        "l.gap",
        "worst gap that another asyncio task sees while the burst is served",
        "gap",
        100_000,
        3,
        ("aio.lanes", "lanes", "asyncio.locks", "asyncio.aiojobs"),
        unit="ms",
        targets=(Target("no longer than on Trio (a.gap)", 1.0, "lanes", "aio.lanes"),),
    ),
)

GROWTH = (
    Growth("i.a", "growth of the burst", "burst", (("lanes", SIZES), ("trio.bare", SIZES))),
    Growth(
        "i.d",
        "growth of waiting jobs with distinct priorities",
        "priorities",
        # p-queue's own list is quadratic: at 10^6 it would take the better part of an hour
        (("lanes", SIZES), ("node.p-queue-10", SIZES[:2]), ("node.p-queue-10-heap", SIZES)),
    ),
    Growth("i.f", "growth of sessions that come and go", "keys", (("lanes", SIZES),)),
    Growth("i.g.clear", "growth of clear", "clear", (("lanes", SIZES),)),
    Growth("i.g.cancel", "growth of cancel, one by one", "cancel", (("lanes", SIZES),)),
)
