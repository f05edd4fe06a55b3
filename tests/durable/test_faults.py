"""A SQLite store that cannot be opened, or that stops working while it is in use."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_lanes.durable._rules.engine as durable_engine
from tests.durable.deploys import deploy
from tests.support.needs import mount_small
from tests.support.programs import PATIENCE
from trio_lanes import UnknownLaneError
from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    SqliteStore,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
    Submission,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._sqlite.machine_time import Moment, this_moment
from trio_lanes.durable._sqlite.schema import SCHEMA_VERSION, fill, migrate
from trio_lanes.durable._sqlite.tables import SqliteTables

pytestmark = pytest.mark.real_processes


async def echo(payload: Any) -> Any:
    return payload


async def used(path: Path, **options: Any) -> int:
    """Open it, have a job done, and close it."""
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}, **options) as lanes:
        job = await lanes.submit("echo", "x", session="s")
        assert await job.wait() == "x"
        return job.id


async def refused(path: Path, kind: type[StoreError], match: str) -> None:
    """Opening it raises that, and changes neither the file nor what lies beside it."""
    before = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    for worker in (True, False):
        with pytest.raises(kind, match=match) as caught:
            async with open_durable_lanes(SqliteStore(path), {}, worker=worker):
                raise AssertionError
        assert type(caught.value) is kind
    for file, content in before.items():
        assert file.read_bytes() == content, file


# ---- at opening


async def test_a_second_worker_is_refused_by_an_error_that_names_the_owner(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on ") as caught:
            async with open_durable_lanes(SqliteStore(path), {"echo": echo}):
                raise AssertionError
        assert str(path) in str(caught.value)
        assert await (await lanes.submit("echo", 1)).wait() == 1
    await used(path)


async def test_a_second_worker_is_refused_by_whatever_name_it_has_the_file(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "jobs.db", tmp_path / "folder" / "other.db"
    other.parent.mkdir()
    other.symlink_to(path)
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}):
        with pytest.raises(StoreLockedError):
            await used(other)
        async with open_durable_lanes(SqliteStore(other), {}, worker=False) as lanes:
            assert await (await lanes.submit("echo", 1)).wait() == 1


async def test_a_worker_that_just_makes_its_file_is_another_process(tmp_path: Path) -> None:
    lock = sqlite3.connect(tmp_path / "jobs.db.lock", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreLockedError, match="another process"):
        await used(tmp_path / "jobs.db")
    lock.close()
    await used(tmp_path / "jobs.db")


async def test_a_worker_that_starts_at_the_same_moment_does_not_lock_another_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._sqlite.owner_lock.LOCK_WAIT", PATIENCE)
    path = tmp_path / "jobs.db.lock"
    other, probe = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
    other.execute("BEGIN")
    other.execute("SELECT * FROM sqlite_master")  # the shared lock of another one that tries
    async with trio.open_nursery() as nursery:
        nursery.start_soon(used, tmp_path / "jobs.db")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            while True:  # until the worker waits for the exclusive lock
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
                await trio.lowlevel.checkpoint()
        other.execute("ROLLBACK")
    other.close()
    probe.close()


OTHER_PROCESS = """
    import sqlite3, sys
    connection = sqlite3.connect(sys.argv[1], timeout=60)
    print(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
    connection.close()
"""


async def test_a_store_opened_twice_in_a_process_stays_in_the_file_that_others_see(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"

    async def seen_by_others() -> int:
        program = [sys.executable, "-c", textwrap.dedent(OTHER_PROCESS), str(path)]
        done = await trio.run_process(program, capture_stdout=True)
        return int(done.stdout)

    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        await lanes.pause("main")
        with pytest.raises(StoreLockedError):
            await used(path)
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as asking:
            await asking.submit("echo")
        for n in range(1, 4):
            # closing a file has SQLite look whether it is the last to do so
            assert await seen_by_others() == n
            await lanes.submit("echo")


async def test_a_worker_that_was_taken_over_stops(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreLockedError, match="process"), flatten_subgroups=True
    ):
        async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
            connection = sqlite3.connect(path)  # as a worker would that the lock did not stop
            connection.execute("UPDATE meta SET epoch = epoch + 1")
            connection.commit()
            connection.close()
            with pytest.raises(StoreLockedError):
                await lanes.submit("echo", 1)
            lanes._worker.request_step()  # type: ignore[union-attr]
            await trio.sleep_forever()


@pytest.mark.parametrize("schema", [0, 1, 99])
async def test_another_schema_is_refused_and_untouched(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()
    await refused(path, StoreVersionError, f"schema {schema}, and .* let the version that wrote it")


@contextmanager
def newer_version(script: str = "CREATE TABLE toy (x INTEGER);\n") -> Iterator[None]:
    """A version of this library with one schema more."""
    toy = {SCHEMA_VERSION: script}
    package = "trio_lanes.durable._sqlite"
    with (
        mock.patch.dict(f"{package}.schema.MIGRATIONS", toy),
        mock.patch(f"{package}.schema.SCHEMA_VERSION", SCHEMA_VERSION + 1),
        mock.patch(f"{package}.store.SCHEMA_VERSION", SCHEMA_VERSION + 1),
    ):
        yield


async def test_only_a_worker_migrates_and_no_worker_of_the_older_version_may_live(
    tmp_path: Path,
) -> None:
    await deploy(lambda: SqliteStore(tmp_path / "jobs.db"), newer_version, StoreLockedError)


async def test_a_worker_migrates_no_file_that_an_asker_has_open(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    async with open_durable_lanes(SqliteStore(path), {}, worker=False):
        store = SqliteStore(path, busy_timeout=0.01)
        with newer_version(), pytest.raises(StoreUnavailableError, match="have the file open"):
            async with open_durable_lanes(store, {}):
                raise AssertionError
    with newer_version():
        await used(path)


async def test_a_file_whose_worker_was_killed_while_it_brought_the_schema_up_to_date_is_opened(
    tmp_path: Path, limited: None
) -> None:
    here, there = tmp_path / "here.db", tmp_path / "jobs.db"
    await used(here)

    def on_statement(statement: str) -> None:
        if statement == "COMMIT":  # the second page cannot be written any more
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))

    connection = sqlite3.connect(here, isolation_level=None)
    connection.set_trace_callback(on_statement)
    script = "CREATE TABLE toy (x INTEGER);\nUPDATE meta SET clock = clock + 1;\n"
    with newer_version(script), pytest.raises(sqlite3.OperationalError):
        migrate(connection)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    for suffix in ("", "-journal"):  # as a kill would leave them
        there.with_name(there.name + suffix).write_bytes(
            here.with_name(here.name + suffix).read_bytes()
        )
    connection.close()
    assert any(there.with_name("jobs.db-journal").read_bytes()[:8])
    with newer_version():
        await used(there)


async def test_a_path_that_cannot_be_looked_at_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, path = os.stat, tmp_path / "jobs.db"

    def fails(file: Any, **options: Any) -> Any:
        if file == str(path):
            raise OSError("Input/output error")
        return stat(file, **options)

    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        monkeypatch.setattr(os, "stat", fails)
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            await lanes.submit("echo")
        monkeypatch.undo()
        await lanes.submit("echo")


async def test_a_schema_that_cannot_be_brought_up_to_date_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    broken = "CREATE TABLE toy (x INTEGER);\nDROP TABLE nothing;\n"
    with newer_version(broken), pytest.raises(sqlite3.OperationalError):
        await used(path)
    await used(path)
    with newer_version():
        await used(path)


async def test_a_file_without_its_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE meta")
    connection.close()
    with pytest.raises(StoreError, match="the tables of a store: no such table: meta"):
        await used(path)


async def test_a_file_of_another_program_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobs (id)")
    connection.commit()
    connection.close()
    await refused(path, StoreVersionError, "another program")


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, b"SQLite format 3\0" + b"short"])
async def test_a_file_that_is_no_database_is_refused_and_untouched(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(content)
    await refused(path, StoreError, "damaged, or is not a store")


@pytest.mark.parametrize("place", ["a page", "its end", "the length of its free list"])
async def test_a_damaged_file_is_refused_and_untouched(tmp_path: Path, place: str) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    content = bytearray(path.read_bytes())
    if place == "a page":
        content[4096:-4096:3] = b"\xff" * len(content[4096:-4096:3])
    elif place == "the length of its free list":
        content[36:40] = (5).to_bytes(4)
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)
    await refused(path, StoreError, "damaged")


async def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    await used(path)


async def test_a_path_that_no_time_makes_a_store_is_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path, "is a folder, not a file"),
        (tmp_path / "nowhere" / "jobs.db", "there is no folder"),
        (tmp_path / "file" / "jobs.db", "there is no folder"),
    ):
        with pytest.raises(StoreError, match=why) as caught:
            await used(path)
        assert type(caught.value) is StoreError
    with pytest.raises(StoreUnavailableError, match="File name too long"):
        await used(tmp_path / ("x" * 300))


@pytest.mark.parametrize("denied", ["the file", "its folder"])
async def test_a_path_that_this_user_may_not_write_is_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    no = str(path if denied == "the file" else tmp_path)
    monkeypatch.setattr(os, "access", lambda file, mode: file != no)  # root may do everything
    await refused(path, StoreError, "this user has no right to write")


async def test_a_file_whose_first_page_cannot_be_read_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect = tmp_path / "jobs.db", sqlite3.connect
    await used(path)

    def fails(file: Any, **options: Any) -> Any:
        if str(file).startswith("file:"):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return connect(file, **options)

    monkeypatch.setattr(sqlite3, "connect", fails)
    await refused(path, StoreUnavailableError, "disk I/O error")


async def test_a_path_is_never_taken_for_a_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "file:jobs.db?mode=memory"
    assert await used(Path(name)) < await used(Path(name))
    assert (tmp_path / name).is_file()


async def test_a_file_that_is_made_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    path, shared = tmp_path / "jobs.db", tmp_path / "shared.db"
    shared.touch()
    shared.chmod(0o660)
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        await lanes.submit("echo")
        for file in (path, tmp_path / "jobs.db-wal", tmp_path / "jobs.db-shm"):
            assert file.stat().st_mode & 0o777 == 0o600
    await used(shared)  # a person has decided who may read it
    assert shared.stat().st_mode & 0o777 == 0o660


async def test_a_store_is_opened_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        with pytest.raises(RuntimeError, match="is open already"):
            async with open_durable_lanes(store, {"echo": echo}):
                raise AssertionError
    with pytest.raises(StoreUnavailableError, match="is not open"):
        await lanes.statistics()
    assert repr(store) == f"<trio_lanes.durable.SqliteStore {str(tmp_path / 'jobs.db')!r}>"
    with pytest.raises(ValueError, match="synchronous"):
        SqliteStore("x", synchronous="OFF")  # type: ignore[arg-type]


READ_ONLY = """
    import os, sys, trio
    from trio_lanes.durable import SqliteStore, StoreError, open_durable_lanes

    async def main():
        async with open_durable_lanes(SqliteStore(sys.argv[1]), {}):
            pass

    if os.getuid() == 0:
        os.setuid(65534)
    try:
        trio.run(main)
    except StoreError as error:
        print(type(error).__name__, error)
"""


def test_a_file_that_is_read_only_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    trio.run(used, path)
    before = path.read_bytes()
    path.chmod(0o444)
    for file in (tmp_path, *tmp_path.parents):
        if file.owner() == "root" or os.getuid() == 0:
            file.chmod(file.stat().st_mode | 0o755)
    if os.getuid() != 0:
        tmp_path.chmod(0o555)
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ_ONLY), path],
        capture_output=True,
        text=True,
        check=True,
    )
    tmp_path.chmod(0o755)
    assert str(path) in ran.stdout
    assert ran.stdout.startswith("StoreError ")
    assert "this user has no right to write" in ran.stdout
    assert path.read_bytes() == before


# ---- a sync that fails

NO_SYNC = r"""
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int fail(void) { if (access(getenv("NO_SYNC"), F_OK)) return 0; errno = EIO; return -1; }
int fsync(int fd) { return fail(); }
int fdatasync(int fd) { return fail(); }
"""

REFUSED = """
    import os, signal, sys, trio
    from pathlib import Path
    from trio_lanes.durable import SqliteStore, StoreUnavailableError, open_durable_lanes

    async def main():
        async with open_durable_lanes(SqliteStore(sys.argv[1]), {}, worker=False) as lanes:
            print((await lanes.submit("echo", "accepted")).id)
            Path(os.environ["NO_SYNC"]).touch()
            try:
                await lanes.submit("echo", "refused")
            except StoreUnavailableError as error:
                print("refused", error.unknown, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    trio.run(main)
"""


@pytest.mark.needs("gcc")
async def test_a_submission_that_was_refused_since_a_sync_failed_is_not_there_after_a_kill(
    tmp_path: Path,
) -> None:
    compiler = shutil.which("gcc")
    assert compiler is not None
    (tmp_path / "shim.c").write_text(NO_SYNC)
    shim = tmp_path / "shim.so"
    await trio.run_process([compiler, "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c"])
    ran = await trio.run_process(
        [sys.executable, "-c", textwrap.dedent(REFUSED), str(tmp_path / "jobs.db")],
        env=dict(os.environ, LD_PRELOAD=str(shim), NO_SYNC=str(tmp_path / "no_sync")),
        capture_stdout=True,
        check=False,
    )
    id, refused = ran.stdout.split(maxsplit=1)
    assert refused == b"refused False\n"
    async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {}, worker=False) as lanes:
        assert [job.id for job in await lanes.jobs()] == [int(id)]


class Faulty(sqlite3.Connection):
    """Its commits fail with these codes, one after the other."""

    codes: ClassVar[tuple[int, ...]] = ()

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.codes:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode, *codes = self.codes
            type(self).codes = tuple(codes)
            raise error
        return super().execute(statement, *args)


@pytest.mark.parametrize(
    ("codes", "unknown", "written"),
    [
        ((sqlite3.SQLITE_IOERR_WRITE,), False, False),  # the commit is not in the log
        ((sqlite3.SQLITE_IOERR_FSYNC,), False, True),  # it is, and is written over
        ((sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_FSYNC), False, False),  # so it is here
        ((sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE), True, False),
    ],
)
async def test_a_commit_that_failed_is_written_over_or_said_to_be_unknown(
    codes: tuple[int, ...],
    unknown: bool,
    written: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(real, factory=Faulty))
    path = tmp_path / "jobs.db"

    def last_number() -> int:
        with closing(real(path)) as connection:
            return int(connection.execute("SELECT sequence FROM meta").fetchone()[0])

    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        first = await lanes.submit("echo")
        before = last_number()
        monkeypatch.setattr(Faulty, "codes", codes)
        with pytest.raises(StoreUnavailableError, match="disk I/O error") as caught:
            await lanes.submit("echo")
        assert caught.value.unknown is unknown
        monkeypatch.setattr(Faulty, "codes", ())
        monkeypatch.setattr(sqlite3, "connect", real)
        assert len(await lanes.jobs()) == 1
        # the number that is used up shows that something was written
        assert last_number() == before + written
        assert (await lanes.submit("echo")).id > first.id
        assert (await lanes.check()).problems == ()


async def test_of_a_group_whose_commit_is_in_doubt_each_submission_is_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(real, factory=Faulty))
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        other = real(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        codes = (sqlite3.SQLITE_IOERR_FSYNC, *[sqlite3.SQLITE_IOERR_WRITE] * 5)
        monkeypatch.setattr(Faulty, "codes", codes)
        unknown: list[bool] = []

        async def submit(n: int) -> None:
            with pytest.raises(StoreUnavailableError, match="disk I/O error") as caught:
                await lanes.submit("echo", n)
            unknown.append(caught.value.unknown)

        async with trio.open_nursery() as nursery:
            for n in range(2):
                nursery.start_soon(submit, n)
            await wait_all_tasks_blocked()
            other.close()
        assert unknown == [True, True]
        monkeypatch.undo()
        after = await lanes.submit("echo")
        assert [job.id for job in await lanes.jobs()] == [after.id]


# ---- while it is in use


@pytest.fixture
def limited() -> Iterator[None]:
    """Files may not grow beyond a megabyte, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def until_refused(lanes: DurableLanes) -> list[int]:
    accepted = []
    with pytest.raises(StoreUnavailableError):
        for _ in range(1000):
            accepted.append((await lanes.submit("echo", "x" * 20_000, lane="cron")).id)
    assert accepted
    return accepted


async def test_a_full_disk_refuses_new_work_and_loses_nothing(
    tmp_path: Path, limited: None, caplog: pytest.LogCaptureFixture
) -> None:
    path, go_on = tmp_path / "jobs.db", trio.Event()

    async def wait(payload: Any) -> Any:
        await go_on.wait()
        return payload

    async with open_durable_lanes(SqliteStore(path), {"echo": echo, "wait": wait}) as lanes:
        await lanes.pause("cron")
        running = await lanes.submit("wait", "ran through it", session="s")
        behind = await lanes.submit("wait", "came after it", session="s")
        while (await lanes.statistics()).running == 0:
            await trio.lowlevel.checkpoint()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))
        accepted = await until_refused(lanes)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, -1))  # nor is there room for a small thing
        go_on.set()
        while "is not available" not in caplog.text:
            with pytest.raises(StoreUnavailableError):
                await lanes.submit("echo", "x" * 20_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        assert await running.wait() == "ran through it"
        assert await behind.wait() == "came after it"
        assert (await lanes.statistics()).waiting == len(accepted)
        assert "is available again" in caplog.text
        assert (await lanes.check()).problems == ()
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        await lanes.resume("cron")
        for id in accepted:
            assert len(await lanes.job(id).wait()) == 20_000


async def test_another_process_that_holds_the_file_delays_new_jobs_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, go_on = tmp_path / "jobs.db", trio.Event()

    async def wait(payload: Any) -> Any:
        await go_on.wait()
        return payload

    handlers = {"echo": echo, "wait": wait}
    async with open_durable_lanes(SqliteStore(path, busy_timeout=0.02), handlers) as lanes:
        running = await lanes.submit("wait", "ran through it", session="s")
        behind = await lanes.submit("echo", "came after it", session="s")
        while (await lanes.statistics()).running == 0:
            await trio.lowlevel.checkpoint()
        other = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            await lanes.submit("echo", "refused")
        assert (await running.status()).state is DurableState.RUNNING  # to look is possible
        go_on.set()
        while "is not available" not in caplog.text:
            await trio.lowlevel.checkpoint()
        other.close()
        assert await running.wait() == "ran through it"
        assert await behind.wait() == "came after it"
        assert (await running.status()).crashes == 0


async def test_a_look_is_answered_while_another_process_holds_the_file_also_beside_refused_acts(
    tmp_path: Path,
) -> None:
    path, found = tmp_path / "jobs.db", []
    store = SqliteStore(path, busy_timeout=0.5)
    async with open_durable_lanes(store, {"echo": echo}, worker=False) as lanes:
        job = await lanes.submit("echo", 1)

        async def submit() -> None:
            with pytest.raises(StoreUnavailableError, match="locked"):
                await lanes.submit("echo", "refused")

        async def look() -> None:
            found.append((await job.status()).state)

        other = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:  # while the first waits, the others pile up
            for call in (submit, submit, look, submit, look):
                nursery.start_soon(call)
        other.close()
        assert found == [DurableState.WAITING] * 2
        assert [one.id for one in await lanes.jobs()] == [job.id]


async def test_a_job_too_large_for_the_disk_fails_alone(tmp_path: Path, limited: None) -> None:
    async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {"echo": echo}) as lanes:
        await lanes.pause("main")
        resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, -1))
        results: dict[int, object] = {}

        async def submit(n: int) -> None:
            try:
                await lanes.submit("echo", "x" * (1_000_000 if n == 3 else 10), session=str(n))
                results[n] = "accepted"
            except StoreUnavailableError:
                results[n] = "refused"

        async with trio.open_nursery() as nursery:
            for n in range(6):
                nursery.start_soon(submit, n)
        assert results.pop(3) == "refused"
        assert set(results.values()) == {"accepted"}
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))


async def test_a_store_that_stays_away_holds_up_the_end_for_some_seconds_only(
    tmp_path: Path, limited: None, caplog: pytest.LogCaptureFixture, mock_clock: MockClock
) -> None:
    path = tmp_path / "jobs.db"

    async def wait(payload: Any) -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with open_durable_lanes(SqliteStore(path), {"wait": wait}) as lanes:
            job = await lanes.submit("wait")
            while (await lanes.statistics()).running == 0:
                await trio.lowlevel.checkpoint()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, -1))
            mock_clock.rate = 50
            scope.cancel()
    mock_clock.rate = 0
    assert "the ends of 1 runs could not be reported" in caplog.text
    assert "could not sign off from its store" in caplog.text
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    async with open_durable_lanes(SqliteStore(path), {"wait": wait}, grace=0) as lanes:
        assert (await lanes.job(job.id).status()).crashes == 1


async def test_a_drain_does_not_wait_for_ever_for_a_store_that_stays_away(
    tmp_path: Path, limited: None, caplog: pytest.LogCaptureFixture, mock_clock: MockClock
) -> None:
    path = tmp_path / "jobs.db"

    async def wait(payload: Any) -> None:
        await trio.sleep_forever()

    async with open_durable_lanes(SqliteStore(path), {"wait": wait}, grace=0) as lanes:
        await lanes.submit("wait")
        while (await lanes.statistics()).running == 0:
            await trio.lowlevel.checkpoint()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, -1))
        mock_clock.rate = 50
    mock_clock.rate = 0
    assert "the ends of 1 runs could not be reported" in caplog.text
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    async with open_durable_lanes(SqliteStore(path), {"wait": wait}, grace=0) as lanes:
        there = await lanes.statistics()
        assert there.waiting + there.running == 1


# ---- a small disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount_small(disk, "4m")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_a_store_on_a_full_disk_goes_on_when_there_is_room(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 2_500_000)
    async with open_durable_lanes(SqliteStore(small_disk / "jobs.db"), {"echo": echo}) as lanes:
        await lanes.pause("cron")
        accepted = await until_refused(lanes)
        ballast.unlink()
        assert await (await lanes.submit("echo", "there is room")).wait() == "there is room"
        assert (await lanes.statistics()).waiting == len(accepted)
        assert (await lanes.check()).problems == ()
    async with open_durable_lanes(SqliteStore(small_disk / "jobs.db"), {"echo": echo}) as lanes:
        assert (await lanes.statistics()).waiting == len(accepted)


# ---- moments that are hard to come by


async def test_a_file_that_cannot_be_filled_is_filled_later(tmp_path: Path, limited: None) -> None:
    path = tmp_path / "jobs.db"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, -1))
    with pytest.raises(StoreUnavailableError):
        await used(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    await used(path)


async def test_a_file_that_cannot_be_written_is_refused_and_opened_later(
    tmp_path: Path, limited: None
) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, -1))
    with pytest.raises(StoreUnavailableError):
        await used(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    await used(path)


@pytest.mark.parametrize("written", ["some pages", "all pages"])
async def test_a_file_whose_maker_was_killed_is_made_anew(tmp_path: Path, written: str) -> None:
    here, there = tmp_path / "here.db", tmp_path / "jobs.db"

    def leave(suffix: str) -> None:
        there.with_name(there.name + suffix).write_bytes(
            here.with_name(here.name + suffix).read_bytes()
        )

    def on_statement(statement: str) -> None:
        if statement == "COMMIT":  # what lies there now, a kill would leave
            assert here.read_bytes()
            leave("-journal")
            leave("")

    connection = sqlite3.connect(here, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("PRAGMA cache_spill = 1")  # written before the commit
    connection.set_trace_callback(on_statement)
    fill(connection)
    connection.close()
    if written == "all pages":
        leave("")
    else:
        assert there.read_bytes()[:16] == bytes(16)
    await used(there)


async def test_a_file_whose_worker_was_killed_while_its_log_was_moved_is_opened(
    tmp_path: Path,
) -> None:
    path, here = tmp_path / "jobs.db", tmp_path / "here.db"
    log, its_log = tmp_path / "jobs.db-wal", tmp_path / "here.db-wal"
    async with open_durable_lanes(SqliteStore(here), {}, worker=False) as lanes:
        for n in range(40):
            await lanes.submit("echo", "x" * 1000, session=str(n))
        moving = sqlite3.connect(here)
        log.write_bytes(its_log.read_bytes())
        path.write_bytes(here.read_bytes())
        moving.execute("PRAGMA wal_checkpoint")
        moving.close()
        # the first page says how many there are, and is the first that is written
        path.write_bytes(here.read_bytes()[:4096] + path.read_bytes()[4096:])
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        assert (await lanes.statistics()).waiting == 40


async def test_a_journal_that_cannot_be_read_is_not_available(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    (tmp_path / "jobs.db-journal").mkdir()
    await refused(path, StoreUnavailableError, "disk I/O error")


async def test_a_file_that_is_just_being_made_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waits, sleep = tmp_path / "jobs.db", trio.Event(), time.sleep

    def sleeps(seconds: float) -> None:
        trio.from_thread.run_sync(waits.set)
        sleep(seconds)

    connection = sqlite3.connect(path, isolation_level=None)
    fill(connection)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        async with open_durable_lanes(SqliteStore(path, busy_timeout=0.05), {}):
            raise AssertionError
    monkeypatch.setattr("time.sleep", sleeps)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(used, path)
        await waits.wait()
        connection.close()


async def test_many_that_make_a_file_at_once_make_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def ask() -> None:
        store = SqliteStore(path, patience=PATIENCE)
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            await lanes.submit("echo")

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        assert (await lanes.statistics()).waiting == 5


async def test_a_schema_that_is_made_twice_is_there_once(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    fill(connection)
    fill(connection)
    connection.close()
    await used(tmp_path / "jobs.db")


async def test_a_lock_that_is_no_lock_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.db.lock").write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match=r"jobs\.db\.lock is damaged"):
        await used(tmp_path / "jobs.db")


async def test_a_file_that_is_damaged_while_it_is_in_use_says_so(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        connection = sqlite3.connect(path)
        connection.execute("ALTER TABLE counts RENAME TO gone")
        connection.commit()
        connection.close()
        with pytest.raises(sqlite3.OperationalError, match="counts"):
            await lanes.statistics()


async def test_an_insert_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        await lanes.statistics()
        assert store._writer is not None
        store._writer._tables._execute("PRAGMA max_page_count = 60")
        results: dict[int, object] = {}

        async def submit(n: int) -> None:
            try:
                await lanes.submit("echo", "x" * (900_000 if n == 5 else 10))
                results[n] = "accepted"
            except StoreUnavailableError as error:
                results[n] = str(error)

        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(submit, n)
        assert "database or disk is full" in str(results.pop(5))
        assert set(results.values()) == {"accepted"}


async def test_a_refusal_in_a_batch_is_refused_alone(tmp_path: Path) -> None:
    async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {}, worker=False) as lanes:
        errors: list[object] = []

        async def submit(n: int) -> None:
            try:
                await lanes.submit("echo", n, lane="nowhere" if n % 3 == 0 else "main")
            except UnknownLaneError:
                errors.append(n)

        async with trio.open_nursery() as nursery:
            for n in range(30):
                nursery.start_soon(submit, n)
        assert sorted(errors) == list(range(0, 30, 3))  # type: ignore[type-var]
        assert (await lanes.statistics()).waiting == 20


async def test_who_finds_the_line_too_long_waits_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._sql.act_thread.OUTSTANDING", 3)
    monkeypatch.setattr("trio_lanes.durable._sql.act_thread.MAX_ACTS", 2)
    async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {}, worker=False) as lanes:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(lanes.submit, "echo")
        assert (await lanes.statistics()).waiting == 50
        with trio.CancelScope() as scope:
            scope.cancel()
            await lanes.submit("echo")
        assert scope.cancelled_caught
        assert (await lanes.statistics()).waiting == 50


async def test_a_slow_look_that_fails_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, failures = tmp_path / "jobs.db", iter([True, True])
    version = SqliteTables.version

    def failing(self: SqliteTables) -> int:
        if next(failures, False):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return version(self)

    monkeypatch.setattr("trio_lanes.durable._sqlite.store.WORKER_LOOKS_EVERY", 0.02)
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as asking:
            monkeypatch.setattr(SqliteTables, "version", failing)
            job = await asking.submit("echo", "seen")
        assert await lanes.job(job.id).wait() == "seen"
        assert await SqliteStore(path).beat()


async def test_a_file_above_the_size_that_is_looked_through_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    monkeypatch.setattr("trio_lanes.durable._sqlite.schema.CHECKED_UP_TO", 0)
    await used(path)


async def test_a_schema_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    monkeypatch.setattr(
        "trio_lanes.durable._sqlite.schema.SCHEMA", "CREATE TABLE a (b);\nDROP TABLE c;\n"
    )
    with pytest.raises(sqlite3.OperationalError):
        await used(path)
    monkeypatch.undo()
    await used(path)


async def test_a_file_that_another_holds_on_to_is_not_available(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await used(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        async with open_durable_lanes(SqliteStore(path, busy_timeout=0.05), {"echo": echo}):
            raise AssertionError
    connection.close()
    await used(path)


# ---- a file that goes back in time, or goes away


def copied(path: Path, copy: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()


@pytest.mark.parametrize("first", ["a worker", "one that asks"])
async def test_numbers_and_fences_never_come_again_though_a_backup_is_restored(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    seen: list[list[int]] = []  # by opening
    openings = count(1)

    def later() -> Moment:  # a second between two openings
        return attrs.evolve(this_moment(), machine=time.monotonic() + next(openings))

    monkeypatch.setattr("trio_lanes.durable._sqlite.store.this_moment", later)

    async def note(payload: Any) -> None:
        run = current_job()
        assert run is not None
        seen[-1] += [run.id, run.fence]

    async def done(n: int) -> None:
        seen.append([])
        async with open_durable_lanes(SqliteStore(path), {"note": note}) as lanes:
            for _ in range(n):
                await (await lanes.submit("note")).wait()

    await done(1)
    copied(path, backup)
    await done(3)
    path.unlink()
    backup.rename(path)
    if first == "one that asks":
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as asking:
            await asking.submit("note")
    await done(2)
    numbers = [*chain(*seen)]
    assert len(set(numbers)) == len(numbers)
    assert all(max(former) < min(later) for former, later in pairwise(seen))
    assert max(numbers) < 2**53  # JavaScript counts no further


@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("how", ["removed", "replaced", "its log removed"])
async def test_a_file_that_is_removed_or_replaced_takes_nothing_more_and_ends_its_worker(
    tmp_path: Path, worker: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    monkeypatch.setattr("trio_lanes.durable._sqlite.store.WORKER_LOOKS_EVERY", 0.02)
    why = "was removed or replaced while this process had it open"
    handlers: dict[str, Any] = {"echo": echo} if worker else {}

    async def live() -> None:
        async with open_durable_lanes(SqliteStore(path), handlers, worker=worker) as lanes:
            job = await lanes.submit("echo", delay=1000)
            if how == "replaced":
                copied(path, tmp_path / "copy.db")
                (tmp_path / "copy.db").rename(path)
            else:
                for name in ("jobs.db-wal",) if how == "its log removed" else ("jobs.db",):
                    (tmp_path / name).unlink()
            if worker:
                await trio.sleep_forever()  # until a slow look
            with pytest.raises(StoreError, match=why):
                await lanes.submit("echo")
            with pytest.raises(StoreError, match=why):
                await lanes.jobs()
            await job.wait()

    with pytest.raises(ExceptionGroup) as caught:
        await live()
    _, others = caught.value.split(StoreError)
    assert others is None
    assert why in "".join(traceback.format_exception(caught.value))


# ---- a read that fails


def damage() -> sqlite3.DatabaseError:
    """What SQLite makes of a read that failed with EIO."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


class BadReads:
    """Reads of a store that fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = self.nothing_is_read = False
        begin, connect = SqliteTables.begin, sqlite3.connect

        def begins(tables: SqliteTables, *args: float, write: bool = True) -> None:
            if self.failing:
                raise damage()
            begin(tables, *args, write=write)

        def connects(*args: Any, **options: Any) -> Any:
            if self.nothing_is_read:
                raise damage()
            return connect(*args, **options)

        monkeypatch.setattr(SqliteTables, "begin", begins)
        monkeypatch.setattr(sqlite3, "connect", connects)


async def test_a_read_that_fails_is_no_damage_and_running_jobs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads, go_on = BadReads(monkeypatch), trio.Event()

    async def wait(payload: Any) -> Any:
        await go_on.wait()
        return payload

    store = SqliteStore(tmp_path / "jobs.db")
    async with open_durable_lanes(store, {"echo": echo, "wait": wait}) as lanes:
        running = await lanes.submit("wait", "ran through it", session="s")
        while (await lanes.statistics()).running == 0:
            await trio.lowlevel.checkpoint()
        reads.failing = True
        for reads.nothing_is_read, why in (
            (True, "cannot be read"),
            (False, "a check found no damage"),
        ):
            with pytest.raises(StoreUnavailableError, match=why):
                await lanes.submit("echo")
            with pytest.raises(StoreUnavailableError, match=why):
                await lanes.jobs()
        async with trio.open_nursery() as nursery:  # those of one transaction alike

            async def submit() -> None:
                with pytest.raises(StoreUnavailableError):
                    await lanes.submit("echo")

            for _ in range(5):
                nursery.start_soon(submit)
        go_on.set()
        while "is not available" not in caplog.text:
            await trio.lowlevel.checkpoint()
        reads.failing = False
        assert await running.wait() == "ran through it"
        assert (await running.status()).crashes == 0
        assert (await lanes.statistics()).waiting == 0


DAMAGING = """
    import sys
    with open(sys.argv[1], "r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\\xff" * (4096 * 8))
"""


async def test_a_file_that_a_check_finds_damaged_ends_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    reads = BadReads(monkeypatch)
    with pytest.raises(ExceptionGroup) as caught:
        async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
            await (await lanes.submit("echo")).wait()
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            await trio.run_process([sys.executable, "-c", textwrap.dedent(DAMAGING), str(path)])
            reads.failing = True
            lanes._worker.request_step()  # type: ignore[union-attr]
            await trio.sleep_forever()
    # the worker's step fails, and the store's look for changes may fail with it
    damaged, others = caught.value.split(
        lambda error: type(error) is StoreError and "is damaged" in str(error)
    )
    assert damaged is not None
    assert others is None


# ---- what only a loss of power, or a reader of the code, would notice


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
async def test_commits_wait_for_the_disk_as_was_said_and_the_epoch_always_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: Any, number: int
) -> None:
    synced: list[tuple[str, int]] = []  # (a statement that changes something, how it is synced)

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> Any:
            if statement.startswith(("UPDATE meta SET epoch", "INSERT INTO jobs", "COMMIT")):
                (level,) = super().execute("PRAGMA synchronous").fetchone()
                synced.append((statement.split()[0], level))
            return super().execute(statement, *values)

    connect = sqlite3.connect

    def connects(*args: Any, **options: Any) -> Any:
        return connect(*args, **{"factory": Connection, **options})

    monkeypatch.setattr(sqlite3, "connect", connects)
    store = SqliteStore(tmp_path / "jobs.db", synchronous=synchronous)
    async with open_durable_lanes(store, {}) as lanes:
        (epoch,) = [level for what, level in synced if what == "UPDATE"]
        assert epoch == 2
        synced.clear()
        await lanes.submit("echo")
        assert {level for _, level in synced} == {number}


async def test_of_an_act_that_fails_halfway_nothing_is_kept_though_its_group_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    digest = durable_engine.digest

    def fails(payload: str) -> str:
        if payload == '"bad"':
            raise ArithmeticError
        return digest(payload)

    monkeypatch.setattr(durable_engine, "digest", fails)
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        async def fail() -> None:
            batch = [Submission(name="half"), Submission(name="half", payload="bad", key="k")]
            with pytest.raises(ArithmeticError):
                await lanes.submit_many(batch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.submit, "first")  # waits for the other; the rest pile up
            await wait_all_tasks_blocked()
            for n in range(3):
                nursery.start_soon(lanes.submit, f"whole {n}")
            nursery.start_soon(fail)
            await wait_all_tasks_blocked()
            other.close()
        names = sorted(job.name for job in await lanes.jobs())
        assert names == ["first", "whole 0", "whole 1", "whole 2"]
        assert (await lanes.check()).problems == ()
