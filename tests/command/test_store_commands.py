"""The commands that look at a store and act on it, over real files."""

import io
import json
import math
import os
import re
import socket
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.command.app import act
from trio_lanes import RateLimit
from trio_lanes.command import main
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    InstanceInfo,
    NoRetry,
    RetryPolicy,
    SqliteStore,
    StoreActivity,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._wire.codec import encode


class Shop:
    """A store, and what is said of it."""

    opened: DurableLanes  # of a worker, for handlers that need them

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def lanes(self, do: Callable[[DurableLanes], Awaitable[Any]], **options: Any) -> Any:
        async def go() -> Any:
            given: dict[str, Any] = {"lanes": {"main": 2, "cron": 1}, "worker": False, **options}
            given.setdefault("handlers", {"act": act} if given["worker"] else {})
            store = SqliteStore(self.path, synchronous="NORMAL")
            async with open_durable_lanes(store, **given) as lanes:
                return await do(lanes)

        return trio.run(go)

    def submit(self, *whats: Any, **options: Any) -> list[int]:
        async def go(lanes: DurableLanes) -> list[int]:
            return [(await lanes.submit("act", what, **options)).id for what in whats]

        ids: list[int] = self.lanes(go)
        return ids

    def kill(self, *sessions: str, **options: Any) -> list[int]:
        """Have a job die in each session."""

        async def go(lanes: DurableLanes) -> list[int]:
            jobs = [await lanes.submit("act", "fail", session=one) for one in sessions]
            await lanes.wait_idle()
            while (await lanes.statistics()).dead < len(sessions):  # noqa: ASYNC110
                await trio.sleep(0.01)
            return [job.id for job in jobs]

        ids: list[int] = self.lanes(go, worker=True, retry=RetryPolicy(max_attempts=1), **options)
        return ids

    def say(self, command: str, *more: str, store: bool = True) -> tuple[int, str, str]:
        """The exit code, standard output and standard error of a command, on the store."""
        code = main([*command.split(), *more, *(["--store", f"sqlite:{self.path}"] * store)])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def ask(self, command: str, *more: str) -> Any:
        """The JSON of a command that succeeds."""
        code, out, err = self.say(command, *more, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = Shop(tmp_path / "jobs.db", capsys)
    shop.submit()
    return shop


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# ---- looking


def test_status_shows_lanes_and_that_there_is_no_worker(shop: Shop) -> None:
    shop.submit(1, 2, session="a")
    shop.submit(3, lane="cron", delay=100)
    code, out, _ = shop.say("status")
    assert code == 0
    heading, _, cron, main_, sessions, due, lost = words(out)
    assert heading == ["lane", "running", "limit", "waiting", "parked", "dead", "unhandled"]
    assert cron == ["cron", "0", "1", "0", "1", "0", "1"]
    assert main_ == ["main", "0", "2", "2", "0", "0", "2"]
    assert sessions == ["1", "session", "with", "queued", "jobs"]
    assert due[:2] == ["next", "due:"]
    assert lost == ["no", "worker"]
    told = shop.ask("status")
    assert (told["waiting"], told["parked"], told["sessions"]) == (2, 1, 1)
    assert told["lanes"]["main"]["concurrency"] == 2
    assert told["lanes"]["main"]["max_waiting"] is None  # no limit
    assert told["instances"] == []
    assert (told["due"], told["lanes"]["cron"]["due"]) == (0, 0)
    assert 0 < told["next_due"] - time.time() <= 100
    shop.kill("b", "c")
    shop.lanes(lambda lanes: lanes.clear("cron"))
    _, out, _ = shop.say("status")
    assert "ended in cron: 1 cancelled\nended in main: 2 dead" in out
    told = shop.ask("status")
    assert (told["ended"]["cron"], told["next_due"]) == ({"cancelled": 1}, None)


def test_health_is_an_exit_code_for_probes(shop: Shop) -> None:
    assert shop.say("health") == (0, "healthy\n", "")
    healthy = {"healthy": True, "problems": [], "unseen": 0, "left_out": []}
    assert shop.ask("health") == healthy
    assert shop.say("health", "--standstill-after", "inf") == (0, "healthy\n", "")
    assert shop.say("health", "--standstill-after", "60.5") == (0, "healthy\n", "")
    assert "must be above 0" in shop.say("health", "--standstill-after", "0")[2]
    shop.lanes(lambda lanes: lanes.configure({}, on_dead="hold"))
    (dead,) = shop.kill("s")
    shop.submit(1, session="s")
    code, out, _ = shop.say("health")
    assert code == 1
    assert "keeps session:s closed" in out
    assert f": requeue or purge {dead}\n" in out
    assert "1 of 'main' died within the last hour: 1 by " in out
    code, out, error = shop.say("health", "--store", "sqlite:nothing.db", store=False)
    assert (code, out) == (2, "")
    assert error == (
        "trio-lanes: could not look: there is no store nothing.db: a worker makes it at its start\n"
    )


def test_failures_are_grouped_with_the_lines_of_the_last_traceback_of_each_group(
    shop: Shop,
) -> None:
    assert shop.say("failures") == (0, "no failures\n", "")
    dead = [*shop.kill("a"), *shop.kill("b")]
    code, out, _ = shop.say("failures")
    assert code == 0
    heading, _, group, *_ = words(out)
    assert heading == ["jobs", "handler", "lane", "error", "last"]
    assert group[0] == "2"
    assert group[-1] == str(max(dead))
    lines = out.splitlines()
    where = lines.index(f"job {max(dead)} of act, in main:")
    assert lines[where + 1] == "Traceback (most recent call last):"
    assert "\\n" not in out
    (told,) = shop.ask("failures --handler act")
    assert (told["count"], told["last"]) == (2, max(dead))
    assert shop.ask("failures --of cron") == []
    assert "looked at" not in out
    assert "\nlooked at 1 only, submitted from 20" in shop.say("failures --limit 1")[1]


def test_why_shows_the_roots_of_the_waits_of_jobs(shop: Shop) -> None:
    first, second = shop.submit(1, 2, session="a")
    (later,) = shop.submit(3, delay=100)
    code, out, _ = shop.say("why", str(first), str(second), str(later))
    assert code == 0
    *before, delay, help = out.splitlines()
    assert before == [
        f"{first} ← no instance lives",
        "    what would help: start a worker",
        f"{second} ← {first} of its session ← no instance lives",
        "    what would help: start a worker",
    ]
    assert delay.startswith(f"{later} ← its delay, in about 1")
    assert help == f"    what would help: promote {later}"
    (told,) = shop.ask("why", str(second))
    assert (told["state"], list(told["waits"])) == ("waiting", ["session"])
    (cause,) = told["causes"]
    assert cause["line"] == before[2]
    assert (cause["kind"], cause["chain"]) == ("instance", [[first, "of its session"]])
    assert shop.say("promote", str(later), str(second)) == (
        1,
        f"promoted 1 job\njob {second} is not parked, or is not known\n",
        "",
    )
    (dead,) = shop.kill("b")
    code, out, _ = shop.say("why", str(dead), "7")
    assert code == 1
    assert out.splitlines() == [
        f"job {dead} is dead; nothing keeps it waiting",
        "the store does not know job 7: its result_ttl is over, it was purged, or it never existed",
    ]


def test_status_shows_workers_and_paused_lanes(shop: Shop) -> None:
    async def go(lanes: DurableLanes) -> None:
        await lanes.pause("cron")
        for told in (shop.ask, shop.say):
            seen.append(await trio.to_thread.run_sync(told, "status"))

    seen: list[Any] = []
    shop.lanes(go, worker=True)
    document, (_, out, _) = seen
    (instance,) = document["instances"]
    assert (instance["pid"], instance["host"]) == (os.getpid(), socket.gethostname())
    assert (instance["names"], instance["lives"]) == (["act"], True)
    assert instance["lease_until"] is None
    assert words(out)[2][-1] == "paused"
    assert words(out)[-1][:3] == [str(os.getpid()), "on", socket.gethostname()]
    assert "gone" not in out


def test_status_says_when_a_worker_is_gone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(shop.path)
    host = socket.gethostname()
    rows = [("a", host, 2**22 + 5), ("b", "elsewhere", 1), ("c", host, 1)]
    for id, where, pid in rows:
        connection.execute(
            "INSERT INTO settings VALUES ('instance', ?, ?)",
            (
                id,
                f'{{"":"InstanceInfo","v":["{id}","{where}",{pid},0.0,Infinity,[],0,'
                '{"":"map","v":[]},true]}',
            ),
        )
    connection.commit()
    connection.close()

    def not_ours(pid: int, signum: int) -> None:
        assert signum == 0
        raise PermissionError if pid == 1 else ProcessLookupError

    monkeypatch.setattr(os, "kill", not_ours)
    lives = {one["id"]: one["lives"] for one in shop.ask("status")["instances"]}
    assert lives == {"a": False, "b": None, "c": True}
    assert shop.say("status")[1].count("(gone)") == 1


def test_instances_lists_workers_with_their_heartbeats_and_how_their_commits_go(
    shop: Shop,
) -> None:
    assert shop.say("instances") == (0, "no worker\n", "")
    assert shop.ask("instances") == []
    now = time.time()
    busy = StoreActivity(
        batch=12_345,
        commits=90,
        late=7,
        longest_wait=0.25,
        image_at=now - 2,
        image_age=2.0,
        commits_a_second=1234.56,
        late_share=0.125,
    )
    one = InstanceInfo("a", "box", 97, now - 100, now + 25, ("act", "cook"), 0)
    one = attrs.evolve(one, lease_ttl=30.0, activity=busy)
    new = attrs.evolve(one, id="b", pid=98, activity=StoreActivity(commits=1))
    gone = attrs.evolve(one, id="c", pid=99, lease_until=now - 5, activity=None)
    owner = attrs.evolve(gone, id="d", pid=100, lease_until=math.inf, lease_ttl=math.inf)
    with closing(sqlite3.connect(shop.path)) as connection, connection:
        rows = [(info.id, encode(info)) for info in (one, new, gone, owner)]
        connection.executemany("INSERT INTO settings VALUES ('instance', ?, ?)", rows)
    code, out, err = shop.say("instances")
    assert (code, err) == (0, "")
    since = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    heads, _, *listed = (re.sub(" +", " ", line).strip() for line in out.splitlines())
    assert heads == (
        "worker running since heartbeat commits/s late longest wait batch image handlers"
    )
    expected = (
        rf"97 on box 0 {since} \S+ s ago 1,234\.6 12% 0\.2 s 12,345 2\.0 s act, cook",
        rf"98 on box 0 {since} \S+ s ago 0\.0 s act, cook",
        rf"99 on box \(gone\) 0 {since} \S+ s ago act, cook",
        rf"100 on box 0 {since} act, cook",
    )
    assert len(listed) == len(expected)
    for line, pattern in zip(listed, expected, strict=True):
        assert re.fullmatch(pattern, line), line
    a, b, c, d = shop.ask("instances")
    assert a["activity"] == attrs.asdict(busy)
    assert (a["lives"], a["names"], a["lease_ttl"]) == (True, ["act", "cook"], 30.0)
    assert 5 <= a["silent"] < 60
    assert (b["activity"]["late_share"], c["lives"], d["activity"]) == (None, False, None)


def test_jobs_lists_jobs_with_their_notes(shop: Shop) -> None:
    (dead,) = shop.kill("a")
    (waiting,) = shop.submit(1, session="b")
    (parked,) = shop.submit(1, lane="cron", delay=100)
    code, out, _ = shop.say("jobs")
    assert code == 0
    rows = {int(row[0]): " ".join(row) for row in words(out)[2:]}
    assert set(rows) == {dead, waiting, parked}
    assert re.match(rf"{dead} act dead main a 1 0 \S+ \S+ ValueError: this one fails", rows[dead])
    assert re.match(rf"{waiting} act waiting main b 0 0 \S+ \S+$", rows[waiting])
    assert re.match(rf"{parked} act parked cron 0 0 \S+ \S+ delay until 20", rows[parked])
    assert [job["id"] for job in shop.ask("jobs")] == [dead, waiting, parked]
    assert [job["id"] for job in shop.ask("jobs --state parked --state dead")] == [dead, parked]
    assert [job["id"] for job in shop.ask("jobs --of cron")] == [parked]
    assert [job["id"] for job in shop.ask("jobs --of session:b")] == [waiting]
    assert shop.ask("jobs --of session:unused") == []
    assert shop.say("jobs --of session:unused") == (0, "no jobs\n", "")


def test_jobs_come_in_pages(shop: Shop) -> None:
    ids = shop.submit(*range(5))
    _, out, _ = shop.say("jobs --limit 2")
    assert out.endswith(f"these are 2; --after {ids[1]} shows more\n")
    assert [job["id"] for job in shop.ask(f"jobs --after {ids[1]} --limit 100")] == ids[2:]


def test_jobs_are_read_in_pieces_however_many(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_lanes.command._ask.JOBS_PER_CALL", 2)
    ids = shop.submit(*range(5))
    assert [job["id"] for job in shop.ask("jobs --limit 5")] == ids
    assert [job["id"] for job in shop.ask("jobs --limit 3")] == ids[:3]


def test_jobs_by_id_say_which_are_not_known(shop: Shop) -> None:
    one, two = shop.submit(1, 2)
    assert [job["id"] for job in shop.ask("jobs", str(two), str(one))] == [two, one]
    code, out, _ = shop.say("jobs", str(one), "999")
    assert code == 1
    assert out.endswith("or it never existed\n")


def test_a_job_by_id_comes_with_its_last_runs(shop: Shop) -> None:
    (dead,) = shop.kill("a")
    (run,) = shop.ask("jobs", str(dead))[0]["history"]
    assert (run["number"], run["how"], run["pid"]) == (1, "dead", os.getpid())
    code, out, _ = shop.say("jobs", str(dead))
    assert code == 0
    row = next(" ".join(row) for row in words(out) if f"{os.getpid()}" in row)
    where = rf"{os.getpid()} on {re.escape(socket.gethostname())}"
    assert re.match(rf"1 \S+ \S+ \S+ s dead {where} ValueError: this one fails", row)


def test_a_running_job_that_is_cancelled_says_so(shop: Shop) -> None:
    async def deaf(payload: Any) -> None:
        with trio.CancelScope(shield=True):
            begun.set()
            await enough.wait()

    async def go(lanes: DurableLanes) -> str:
        job = await lanes.submit("deaf")
        await begun.wait()
        code, _, _ = await trio.to_thread.run_sync(shop.say, "cancel", str(job.id))
        assert code == 0
        _, out, _ = await trio.to_thread.run_sync(shop.say, "jobs", str(job.id))
        enough.set()
        return out

    begun, enough = trio.Event(), trio.Event()
    assert "is being cancelled" in shop.lanes(go, worker=True, handlers={"deaf": deaf})


def test_dead_lists_the_oldest_first(shop: Shop) -> None:
    assert shop.say("dead") == (0, "no dead jobs\n", "")
    ids = shop.kill("a", "b")
    assert sorted(job["id"] for job in shop.ask("dead")) == ids
    assert [job["id"] for job in shop.ask("dead --of session:b")] == [ids[1]]
    assert len(shop.ask("dead --limit 1")) == 1
    assert "ValueError: this one fails" in shop.say("dead")[1]
    assert "shows more" not in shop.say("dead --limit 2")[1]
    assert shop.say("dead --limit 1")[1].endswith(f"these are 1; --after {ids[0]} shows more\n")
    assert [job["id"] for job in shop.ask(f"dead --after {ids[0]}")] == [ids[1]]


def test_check_finds_and_repairs(shop: Shop) -> None:
    assert shop.say("check") == (0, "all is well\n", "")
    shop.submit(1, session="a")
    connection = sqlite3.connect(shop.path)
    connection.execute("UPDATE jobs SET ready = NULL")
    connection.commit()
    connection.close()
    code, out, _ = shop.say("check")
    assert code == 1
    assert "is a waiting head, and is on no ready list" in out
    code, out, _ = shop.say("check --repair")
    assert code == 0
    assert out.endswith("repaired 1, 0 problems left\n")
    assert shop.ask("check --repair") == {"problems": [], "repaired": 0, "left": []}


# ---- acting


def test_dead_jobs_are_taken_back(shop: Shop) -> None:
    ids = shop.kill("a", "b", "c")
    assert shop.ask("requeue", str(ids[0])) == {"requeued": [ids[0]], "left": []}
    assert shop.ask("requeue --of session:b") == {"requeued": 1}
    assert shop.ask("requeue --all") == {"requeued": 1}
    code, out, _ = shop.say("requeue", str(ids[0]))
    otherwise = "is neither dead nor failed, or is not known"
    assert (code, out) == (1, f"requeued 0 jobs\njob {ids[0]} {otherwise}\n")
    assert shop.say("requeue --all") == (1, "requeued 0 jobs\n", "")
    assert [job["state"] for job in shop.ask("jobs")] == ["waiting"] * 3


def test_dead_jobs_are_forgotten(shop: Shop) -> None:
    ids = shop.kill("a", "b", "c")
    assert shop.ask("purge", str(ids[0])) == {"purged": [ids[0]], "left": []}
    assert shop.say("purge --of session:b") == (0, "purged 1 job\n", "")
    assert shop.ask("purge --all") == {"purged": 1}
    assert shop.say("purge", str(ids[0]))[0] == 1
    assert shop.say("purge --all") == (1, "purged 0 jobs\n", "")
    assert shop.ask("jobs") == []


def test_failed_jobs_are_listed_taken_back_and_forgotten(shop: Shop) -> None:
    async def go(lanes: DurableLanes) -> list[int]:
        jobs = [await lanes.submit("act", "fail") for _ in range(3)]
        for job in jobs:
            with pytest.raises(DurableJobError):
                await job.wait()
        return [job.id for job in jobs]

    policy = RetryPolicy(retry_on=KeyError)
    ids = shop.lanes(go, worker=True, retry=policy)
    assert shop.ask("dead") == []
    assert [job["id"] for job in shop.ask("dead --failed")] == ids
    assert shop.ask("requeue", str(ids[0])) == {"requeued": [ids[0]], "left": []}
    assert shop.say("requeue --all")[0] == 1
    assert shop.ask("purge", str(ids[1])) == {"purged": [ids[1]], "left": []}
    assert shop.ask("requeue --all --failed") == {"requeued": 1}
    assert sorted(shop.lanes(go, worker=True, retry=policy)) != ids
    assert shop.ask("purge --all --failed") == {"purged": 5}


def test_rules_are_shown_and_changed(shop: Shop) -> None:
    code, out, _ = shop.say("rules")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "result_ttl 3,600 s",
        "max_crashes 3",
        "on_dead continue",
    ]
    assert shop.ask("rules --result-ttl 60 --max-crashes inf --on-dead hold") == {
        "result_ttl": 60.0,
        "max_crashes": None,
        "on_dead": "hold",
    }
    assert "on_dead hold" in shop.say("rules")[1]
    code, _, err = shop.say("rules --max-crashes 0")
    assert (code, err) == (2, "trio-lanes: max_crashes must be at least 1, got 0\n")


@pytest.mark.parametrize("command", ["requeue", "purge"])
@pytest.mark.parametrize(
    "which",
    ["", "5 --all", "5 --of main", "--all --of main", "5 --error KeyError", "--all --handler act"],
)
def test_of_dead_jobs_one_says_which(shop: Shop, command: str, which: str) -> None:
    code, out, err = shop.say(f"{command} {which}")
    assert (code, out) == (2, "")
    assert err == "trio-lanes: say which: ids, or --of, --handler and --error, or --all\n"


def test_dead_jobs_are_chosen_by_handler_and_error(shop: Shop) -> None:
    ids = shop.kill("a", "b")
    assert [job["id"] for job in shop.ask("dead --handler act --error ValueError")] == ids
    assert shop.ask("dead --error KeyError") == []
    assert shop.say("requeue --error KeyError")[0] == 1
    assert shop.ask("requeue --error ValueError --of session:a") == {"requeued": 1}
    assert shop.ask("purge --handler act") == {"purged": 1}


def test_jobs_are_listed_by_handler_error_and_time(shop: Shop) -> None:
    (dead,) = shop.kill("a")
    (waiting,) = shop.submit(1)
    assert [job["id"] for job in shop.ask("jobs --handler act")] == [dead, waiting]
    assert shop.ask("jobs --handler other") == []
    assert [job["id"] for job in shop.ask("jobs --error ValueError")] == [dead]
    assert len(shop.ask("jobs --since 2020-01-01 --until 2120-01-01T09:30+01:00")) == 2
    assert shop.ask("jobs --until 2020-01-01T00:00") == []
    code, _, err = shop.say("jobs --since yesterday")
    assert code == 2
    assert "'yesterday' is not a time such as 2026-11-22T09:30 or 2026-11-22" in err


def test_waiting_jobs_are_cancelled_and_cleared(shop: Shop) -> None:
    one, two, _, _ = shop.submit(1, 2, 3, 4, session="a")
    assert shop.ask("cancel --reason enough", str(one)) == {"cancelled": [one], "left": []}
    code, out, _ = shop.say("cancel", str(one), str(two))
    assert code == 1
    assert out == f"cancelled 1 job\njob {one} has ended, is dead, or is not known\n"
    assert shop.say("clear session:a") == (0, "cleared 2 jobs of session:a\n", "")
    assert shop.say("clear main --reason why") == (1, "cleared 0 jobs of main\n", "")


def test_lanes_and_sessions_are_paused_and_resumed(shop: Shop) -> None:
    assert shop.say("pause main") == (0, "paused main until it is resumed\n", "")
    assert shop.ask("status")["lanes"]["main"]["paused"]
    assert shop.ask("resume main") == {"resumed": "main"}
    assert not shop.ask("status")["lanes"]["main"]["paused"]
    assert shop.say("pause session:a --for 90") == (0, "paused session:a for 90 s\n", "")
    assert shop.ask("pause main --for 2.5") == {"paused": "main", "seconds": 2.5}


def test_schedules_are_shown_paused_and_removed(shop: Shop) -> None:
    assert shop.say("schedules") == (0, "no schedules\n", "")

    async def schedule(lanes: DurableLanes) -> None:
        await lanes.schedule("hourly", "act", "x", every=3600)
        await lanes.schedule("daily", "act", "y", cron="30 3 * * *", timezone="Asia/Tokyo")

    shop.lanes(schedule)
    code, out, err = shop.say("schedules")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    for part in ("daily act", "30 3 * * *", "Asia/Tokyo", "hourly act", "every 3600 s"):
        assert part in text
    code, out, err = shop.say("schedules daily")
    assert [line[0] for line in words(out)][-5:] == ["next"] * 5
    assert "hourly" not in out
    found = shop.ask("schedules daily")
    assert found["upcoming"][1] - found["upcoming"][0] == 86_400
    assert found["schedule"]["cron"] == "30 3 * * *"
    assert shop.say("pause schedule:daily")[0] == 0
    assert "paused" in shop.say("schedules")[1]
    assert shop.say("resume schedule:daily") == (0, "resumed schedule:daily\n", "")
    for command in ("pause schedule:none", "resume schedule:none", "schedules none"):
        code, _, err = shop.say(command)
        assert (code, err) == (2, "trio-lanes: there is no schedule 'none'\n")
    assert shop.say("unschedule daily") == (0, "removed daily\n", "")
    assert shop.say("unschedule daily") == (1, "there is no schedule 'daily'\n", "")
    assert [one["name"] for one in shop.ask("schedules")] == ["hourly"]


def test_limits_are_set_made_and_removed(shop: Shop) -> None:
    assert shop.say("limit main 1000") == (0, "main runs 1,000 at once, not 2\n", "")
    assert shop.ask("limit main inf") == {
        "lane": "main",
        "concurrency": None,
        "before": 1000,
        "max_waiting": None,
        "rates": [],
        "fair": False,
        "weights": {},
        "aging": None,
    }
    assert shop.say("limit new 0 --new") == (0, "new runs 0 at once\n", "")
    assert shop.say("limit new --remove") == (0, "removed new\n", "")
    assert set(shop.ask("status")["lanes"]) == {"main", "cron"}
    shop.submit(1)
    for command, why in (
        ("limit mian 5", "there is no lane 'mian'; the lanes are: 'cron', 'main'; --new makes one"),
        ("limit main 5 --new", "there is a lane 'main' already"),
        ("limit main", "say how many may run at once, another limit, or --remove"),
        ("limit main 5 --remove", "say how many may run at once, another limit, or --remove"),
        ("limit main --new --remove", "say how many may run at once, another limit, or --remove"),
        ("limit main --remove", "lane 'main' cannot be removed: it has 1 jobs"),
        ("limit session:a 5 --new", "the limits of a durable lane are not for sessions"),
    ):
        code, _, err = shop.say(command)
        assert code == 2
        assert err.startswith(f"trio-lanes: {why}")
        assert err.count("\n") == 1


def test_a_lane_is_made_fair_and_its_owners_get_weights(shop: Shop) -> None:
    assert shop.say("limit main --fair")[1] == "main runs 2 at once, fair\n"
    assert shop.say("limit main --weight gold=4 --weight tenant:*=0.5")[1] == (
        "main runs 2 at once, fair (gold 4, tenant:* 0.5)\n"
    )
    assert shop.ask("limit main 3")["weights"] == {"gold": 4, "tenant:*": 0.5}
    assert shop.say("limit tenant:* 1 --new --fair")[0] == 0
    shop.submit(1)
    code, out, _ = shop.say("status")
    assert code == 0
    assert "fair (gold 4, tenant:* 0.5)" in out
    assert "tenant:*: each lane runs 1, fair" in out.splitlines()
    assert shop.say("limit main --no-fair")[1] == "main runs 3 at once, not fair\n"
    for command, why in (
        ("limit main --weight gold", "Invalid value for '--weight': 'gold' is not an owner and"),
        ("limit main --weight gold=x", "Invalid value for '--weight': 'gold=x' is not an owner"),
        ("limit main --weight gold=0", "weights['gold'] must be from 1e-06 to 1,000,000, got 0"),
        ("limit main --no-fair --weight gold=1", "--fair and --weight are for lanes"),
        ("limit group:api 3 --new --fair", "--fair and --weight are for lanes"),
    ):
        code, _, err = shop.say(command)
        assert code == 2
        assert why in err


def test_a_lane_gets_an_aging_and_loses_it(shop: Shop) -> None:
    assert shop.say("limit main --aging 2.5")[1] == "main runs 2 at once, aging 2.5 s\n"
    assert shop.ask("limit main --fair")["aging"] == 2.5
    assert shop.say("limit tenant:* 1 --new --aging 9")[1] == "tenant:* runs 1 at once, aging 9 s\n"
    _, out, _ = shop.say("status")
    assert "fair, aging 2.5 s" in out
    assert "tenant:*: each lane runs 1, aging 9 s" in out.splitlines()
    assert shop.say("limit main --no-fair --aging inf")[1] == "main runs 2 at once, not fair\n"
    assert shop.say("limit tenant:* --aging inf")[1] == "tenant:* runs 1 at once, no aging\n"
    for command, why in (
        ("limit main --aging 0", "aging must be"),
        ("limit main --aging -2", "aging must be"),
        ("limit group:api 3 --new --member main --aging 2", "--max-waiting and --aging are for"),
    ):
        code, _, err = shop.say(command)
        assert code == 2
        assert why in err


def test_rates_of_calendars_and_decimals_are_set_as_they_are_shown(shop: Shop) -> None:
    rates = "9/day,timezone=Europe/Berlin", "2.50/month,unit=usd", "5.0/60,unit=eur,burst=0.5"
    given = " ".join(f"--rate {rate}" for rate in rates)
    shown = ", ".join(f"rate {rate}" for rate in rates)
    assert shop.say(f"limit main {given}") == (0, f"main runs 2 at once, {shown}\n", "")
    assert [one["limit"] for one in shop.ask("limit main 2")["rates"]] == [9, "2.50", "5.0"]
    for bad in ("5/week", "five/day", "5/day,timezone=Europe/Berln", "nan/60"):
        code, _, err = shop.say(f"limit main --rate {bad}")
        assert code == 2
        assert f"{bad!r} is not a rate" in err


def test_rates_and_room_of_a_lane_are_set_and_its_pause_stays(shop: Shop) -> None:
    shop.say("pause main --for 1000")
    tokens = "900/60,unit=tokens,burst=9"
    assert shop.say(f"limit main --rate 5/1.5,algorithm=sliding --rate {tokens}") == (
        0,
        f"main runs 2 at once, rate 5/1.5,algorithm=sliding, rate {tokens}\n",
        "",
    )
    assert shop.say("limit main --max-waiting 7")[1] == "main runs 2 at once, 7 may wait\n"
    document = shop.ask("status")
    main_ = document["limits"]["main"]
    assert [(rate["limit"], rate["per"], rate["unit"]) for rate in main_["rates"]] == [
        (5, 1.5, "requests"),
        (900, 60, "tokens"),
    ]
    assert main_["max_waiting"] == 7
    assert main_["paused_until"] is not None  # and not for ever, which is null
    assert document["lanes"]["main"]["paused"]
    _, _, cron, row, *_ = words(shop.say("status")[1])
    assert cron[3:] == ["0", "0", "0", "0"]
    assert " ".join(row[3:6]) == "0 of 7"
    assert " ".join(row[9:]) == f"paused, rate 5/1.5,algorithm=sliding, rate {tokens}"
    assert shop.say("limit main 3 --no-rate")[1] == "main runs 3 at once, not 2, no rate\n"
    assert shop.say("limit tenant:* 1 --new --rate 1/60 --max-waiting 9")[0] == 0
    template = "tenant:*: each lane runs 1, 9 may wait, rate 1/60"
    assert template in shop.say("status")[1].splitlines()
    for command, why in (
        ("limit new --new --rate 1/2", "say how many may run at once in the new lane"),
        ("limit main --rate 1/2 --no-rate", "--rate and --no-rate exclude each other"),
        ("limit main --member cron", "--member and --reserve are for groups: group:NAME"),
        ("limit main --rate 5", "Invalid value for '--rate': '5' is not a rate such as 500/60"),
        ("limit main --rate 5/x", "Invalid value for '--rate': '5/x' is not a rate"),
        ("limit main --rate 5/6,size=7", "Invalid value for '--rate': '5/6,size=7' is not a rate"),
        ("limit main --rate 0/6", "Invalid value for '--rate': '0/6' is not a rate"),
    ):
        code, _, err = shop.say(command)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"trio-lanes: {why}")


def test_groups_are_made_changed_and_removed(shop: Shop) -> None:
    members = "--member main --member cron"
    code, out, _ = shop.say(f"limit group:api 3 --new {members} --reserve cron=1 --rate 9/60")
    assert code == 0
    assert " ".join(words(out)[2]) == "api 3 main, cron reserves 1 for cron, rate 9/60"
    changed = shop.ask("limit group:api --no-rate --reserve main=2")
    assert changed == {
        "group": "api",
        "members": ["main", "cron"],
        "concurrency": 3,
        "reserve": {"main": 2},
        "rates": [],
    }
    assert shop.ask("status")["groups"].keys() == {"api"}
    assert "api" in [line[0] for line in words(shop.say("status")[1]) if line]
    for command, why in (
        ("limit group:api 5 --new", "there is a group 'api' already"),
        ("limit group:none 5", "there is no group 'none'; the groups are: 'api'; --new makes one"),
        ("limit group:new 5 --new", "say which lanes the new group has: --member"),
        ("limit group:api --max-waiting 5", "--max-waiting and --aging are for lanes"),
        ("limit group:api --member cron", "reserve names 'main', which is no member"),
        (
            "limit group:api --member gone --reserve main=0",
            "group 'api' has the member 'gone', which is not a lane",
        ),
        ("limit group:api --reserve x", "Invalid value for '--reserve': 'x' is not a lane and a"),
    ):
        code, _, err = shop.say(command)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"trio-lanes: {why}")
    assert shop.ask("limit group:api --member cron --reserve main=0")["members"] == ["cron"]
    assert shop.say("limit group:api --remove") == (0, "removed the group api\n", "")
    assert shop.say("limit group:api 5")[2].endswith("the groups are: none; --new makes one\n")


def test_a_job_is_shown_with_what_it_carries(shop: Shop) -> None:
    large = "x" * 2_000

    async def act(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        if payload == "waits":
            await anext(run.messages())
        await run.checkpoint({"half": payload})
        await run.emit({"said": large})
        if payload == "fail":
            raise NoRetry("no")
        return {"done": payload}

    async def go(lanes: DurableLanes) -> list[int]:
        first = await lanes.submit("act", "waits", session="s")
        while not await lanes.send("s", ["hello"]):  # noqa: ASYNC110
            await trio.sleep(0.01)
        await first.wait()
        failed = await lanes.submit("act", "fail")
        with pytest.raises(DurableJobError):
            await failed.wait()
        await lanes.pause("main")
        return [first.id, failed.id, (await lanes.submit("act", large)).id]

    ids: list[int] = shop.lanes(go, worker=True, handlers={"act": act})
    code, out, _ = shop.say("jobs", *map(str, ids))
    assert code == 0
    lines = out.splitlines()
    assert f'outcome of {ids[0]}: {{"done":"waits"}}' in lines
    assert f"payload of {ids[0]}" not in out  # it has succeeded
    assert ["1", "yes", '["hello"]'] in words(out)
    assert f'payload of {ids[1]}: "fail"' in lines
    assert f'checkpoint of {ids[1]}: {{"half":"fail"}}' in lines
    (payload,) = (line for line in lines if line.startswith(f"payload of {ids[2]}: "))
    assert payload.endswith("x… (2,002 characters; --json shows all)")
    assert max(map(len, lines)) < 1_000
    succeeded, failed, waiting = (one["texts"] for one in shop.ask("jobs", *map(str, ids)))
    assert succeeded["payload"] is None
    assert succeeded["outcome"] == {"done": "waits"}
    assert succeeded["events"] == [{"number": 1, "event": {"said": large}}]
    assert succeeded["messages"] == [{"number": 1, "taken": True, "message": ["hello"]}]
    assert (failed["payload"], failed["outcome"]["message"]) == ("fail", "no")
    assert waiting == {
        "payload": large,
        "checkpoint": None,
        "outcome": None,
        "events": [],
        "messages": [],
    }
    assert "texts" in shop.ask("jobs")[0]
    with closing(sqlite3.connect(shop.path)) as connection:
        connection.execute("UPDATE jobs SET payload = '[9' WHERE id = ?", (ids[2],))
        connection.commit()
    assert shop.ask("jobs", str(ids[2]))[0]["texts"]["payload"] == "[9"


def test_locks_quotas_and_paused_sessions_are_shown_and_a_quota_is_reset(shop: Shop) -> None:
    holding = trio.Event()

    async def locks(payload: Any) -> None:
        async with shop.opened.lock("index"):
            holding.set()
            await trio.sleep_forever()

    async def spends(payload: Any) -> None:
        await shop.opened.quota("tokens").spend(tokens=payload)

    async def here(*command: str) -> Any:
        return await trio.to_thread.run_sync(lambda: shop.ask(*command))

    async def go(lanes: DurableLanes) -> None:
        shop.opened = lanes
        spent = await lanes.quota("tokens").spend(tokens=5)
        await spent.settle(tokens=9_000)  # a slip
        first = await lanes.submit("locks")
        await holding.wait()
        others = [await lanes.submit("locks") for _ in range(12)]
        spend = await lanes.submit("spends", 1)
        await lanes.pause("session:ann")
        async with lanes.lock("mine"):
            while (await lanes.statistics()).locks[0].waiting < 12:  # noqa: ASYNC110
                await trio.sleep(0.01)
            while not await lanes.blocked_by(spend.id):  # noqa: ASYNC110
                await trio.sleep(0.01)
            document = await here("status")
            code, out, _ = await trio.to_thread.run_sync(shop.say, "status")
        assert code == 0
        assert document["paused"] == {"ann": None}
        index, mine = document["locks"]
        assert (index["key"], index["holding"], index["waiting"]) == ("index", 1, 12)
        assert [one["job"] for one in index["holders"]] == [first.id]
        assert [one["job"] for one in index["waiters"]] == [one.id for one in others[:10]]
        assert [one["job"] for one in mine["holders"]] == [None]
        assert "session:ann is paused until it is resumed" in out.splitlines()
        (row,) = (line for line in out.splitlines() if line.startswith("index "))
        assert f"job {first.id} since 20" in row
        assert row.rstrip().endswith(", 2 more")
        (row,) = (line for line in out.splitlines() if line.startswith("mine "))
        assert f"{os.getpid()} on {socket.gethostname()} since 20" in row
        (row,) = (line for line in out.splitlines() if line.startswith("tokens "))
        assert "100/60,unit=tokens" in row
        assert f"job {spend.id}" in row
        code, out, _ = await trio.to_thread.run_sync(shop.say, "why", str(others[3].id))
        assert out.startswith(f'{others[3].id} ← {first.id} with the lock "index" ← ')
        code, out, _ = await trio.to_thread.run_sync(shop.say, "why", str(first.id))
        assert out.splitlines() == [
            f"job {first.id} is running; nothing keeps it waiting",
            f"job {first.id} has the lock 'index', for which 12 wait",
        ]
        (shown,) = await here("why", str(first.id))
        assert (shown["causes"], shown["has"]) == ([], [{"key": "index", "waiting": 12}])
        code, out, _ = await trio.to_thread.run_sync(shop.say, "why", str(spend.id))
        assert out.startswith(f'{spend.id} ← quota "tokens": ')
        (quota,) = await here("quota", "tokens")
        assert quota["levels"][0]["used"] > 8_000
        assert await trio.to_thread.run_sync(shop.say, "quota tokens --reset") == (
            0,
            "reset tokens\n",
            "",
        )
        await spend.wait()

    quotas = {"tokens": RateLimit(100, unit="tokens")}
    shop.lanes(
        go,
        worker=True,
        handlers={"locks": locks, "spends": spends},
        lanes={"main": 99},
        quotas=quotas,
        grace=0,
    )
    (quota,) = shop.ask("quota")
    assert (quota["name"], quota["waiting"]) == ("tokens", 0)
    assert words(shop.say("quota")[1])[2][:2] == ["tokens", "100/60,unit=tokens"]
    assert shop.say("quota none") == (1, "nothing was ever spent\n", "")
    assert shop.say("quota none --reset") == (1, "nothing was ever spent from 'none'\n", "")
    code, _, err = shop.say("quota --reset")
    assert (code, err) == (2, "trio-lanes: say which: NAME --reset, or NAME --grant UNIT=N\n")
    before = quota["levels"][0]["used"]
    (quota,) = shop.ask("quota tokens --grant tokens=7 --by ann")
    assert quota["levels"][0]["granted"] == 7
    assert quota["levels"][0]["used"] <= before
    (record,) = shop.ask("log grants")
    assert (record["data"]["by"], record["data"]["granted"]) == ("ann", {"tokens": 7})
    for command, why in (
        ("quota tokens --grant tokens=1 --reset", "say which: NAME --reset, or"),
        ("quota tokens --grant words=1", "does not count 'words'"),
        ("quota tokens --grant tokens=0.5", "must be a whole number"),
        ("quota tokens --grant tokens", "'tokens' is not a unit and an amount"),
        ("quota tokens --grant tokens=x", "'tokens=x' is not a unit and an amount"),
        ("quota none --grant tokens=1", "nothing was ever spent from 'none'"),
    ):
        code, _, err = shop.say(command)
        assert code == 2
        assert why in err


def test_a_log_is_shown(shop: Shop) -> None:
    async def go(lanes: DurableLanes) -> None:
        for number in range(3):
            await lanes.log("audit").append({"number": number})

    shop.lanes(go, worker=True)
    assert [one["data"]["number"] for one in shop.ask("log audit")] == [0, 1, 2]
    code, out, _ = shop.say("log audit --after 1 --limit 1")
    assert code == 0
    record, more = words(out)[2:]
    assert (record[0], record[2:]) == ("2", ['{"number":', "1}"])
    assert " ".join(more) == "these are 1; --after 2 shows more"
    assert shop.say("log none") == (0, "no records\n", "")


@pytest.mark.parametrize("command", ["jobs --of", "dead --of", "purge --of", "pause", "clear"])
def test_a_lane_that_is_not_there_is_a_mistake(shop: Shop, command: str) -> None:
    code, _, err = shop.say(command, "nowhere")
    assert code == 2
    assert err == "trio-lanes: there is no lane 'nowhere'; the lanes are: 'cron', 'main'\n"


def test_looking_changes_nothing(shop: Shop) -> None:
    def seen() -> Any:
        jobs = [{**job, "waits": None, "seen_at": None} for job in shop.ask("jobs")]
        return shop.ask("status"), jobs

    shop.submit(1, session="a")
    before = seen()
    for command in ("status", "jobs", "dead", "check", "why 1", "health", "failures"):
        shop.say(command)
    assert seen() == before


def test_times_are_local_times_of_the_reader(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.submit(1)
    (job,) = shop.ask("jobs")
    monkeypatch.setenv("TZ", "UTC-5")
    time.tzset()
    try:
        _, out, _ = shop.say("jobs")
    finally:
        monkeypatch.undo()
        time.tzset()
    there = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(job["submitted_at"] + 5 * 3600))
    assert there in " ".join(words(out)[2])


def test_a_time_that_no_calendar_has_is_shown_all_the_same(shop: Shop) -> None:
    shop.submit(1, delay=1e18)
    code, out, _ = shop.say("jobs")
    assert code == 0
    assert "delay until the end of time" in out


def test_what_a_terminal_obeys_is_written_out(shop: Shop) -> None:
    shop.submit(1, session="a\x1b[2Jb ü")
    _, out, _ = shop.say("jobs")
    assert "a\\x1b[2Jb ü" in out
    assert shop.say("clear", "session:a\x1b[2Jb ü")[1] == "cleared 1 job of session:a\\x1b[2Jb ü\n"


def test_json_has_nothing_raw_that_a_terminal_obeys(shop: Shop) -> None:
    session = "a\x1b\x07\x9b2J\u202e\x7f ü\U000e0001"
    shop.submit(1, session=session)
    code, out, _ = shop.say("jobs --json")
    assert code == 0
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "ü" in out
    assert json.loads(out)[0]["session"] == session


def test_a_locale_that_lacks_letters_gets_escapes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.submit(1, session="日")

    def say(command: str) -> str:
        with monkeypatch.context() as patch:
            out = io.BytesIO()
            patch.setattr("sys.stdout", io.TextIOWrapper(out, "latin-1", write_through=True))
            assert shop.say(command)[0] == 0
            return out.getvalue().decode("latin-1")

    assert "\\u221e" in say("limit main inf")
    assert "\\u65e5" in say("jobs")
    assert json.loads(say("jobs --json"))[0]["session"] == "日"


@pytest.mark.parametrize("command", ["jobs --of", "dead --of", "purge --of", "pause", "clear"])
@pytest.mark.parametrize("name", ["", " ", "session:", "session: session:", "schedule:"])
def test_an_empty_name_is_a_mistake_and_not_the_main_lane(
    shop: Shop, command: str, name: str
) -> None:
    shop.submit(1)
    code, _, err = shop.say(command, name)
    assert code == 2
    assert "names neither a lane nor a session" in err
    assert shop.ask("status")["waiting"] == 1


@pytest.mark.parametrize("name", ["a\udcff", "x" * 1001, "a\0b"])
@pytest.mark.parametrize(
    "command",
    ["jobs --of", "jobs --handler", "dead --error", "purge --of", "pause", "resume", "clear"],
)
def test_a_name_that_no_store_can_keep_is_a_mistake(shop: Shop, command: str, name: str) -> None:
    shop.submit(1)
    for prefix in ("", "session:"):
        code, _, err = shop.say(command, prefix + name)
        assert (code, "Traceback" in err) == (2, False)
        assert "a name must " in err
    assert shop.ask("status")["waiting"] == 1


@pytest.mark.parametrize("command", ["status", "status --json"])
def test_a_closed_output_leaves_the_exit_code(
    shop: Shop, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", None)
        assert shop.say(command) == (0, "", "")
