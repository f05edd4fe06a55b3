"""JsonlTranscript: files that only grow, and what a crash leaves of them."""

from __future__ import annotations

import errno
import gc
import io
import itertools
import json
import os
import re
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_lanes.agents import (
    Conversation,
    JsonlTranscript,
    Message,
    TranscriptError,
    TranscriptLockedError,
)

pytestmark = pytest.mark.both_doors

JSONL = "trio_lanes.agents._conversations.jsonl"


async def say(conversation: Conversation, question: str, answer: str) -> None:
    async with conversation.turn(question) as turn:
        await turn.finish(answer)


def reopened(conversation: Conversation) -> Conversation:
    """The conversation as the next process has it, after the end of this one."""
    assert isinstance(conversation.store, JsonlTranscript)
    conversation.store.close()
    return Conversation(conversation.thread_id, JsonlTranscript(conversation.store.folder))


def files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != ".owner")


def contents(messages: Sequence[Message]) -> list[Any]:
    return [message.content for message in messages]


async def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    one, two = Conversation("one", store), Conversation("two", store)
    async with one.turn("u1", {"image": "…"}) as turn:
        await turn.append("ä\n€ \ud800")
        await turn.call([{"id": "x", "arguments": {"n": 1.5}}])
        await turn.result("x", [1, None, True])
        await turn.finish("a1", usage={"tokens": 3})
    await say(two, "u2", "a2")
    before = [await one.messages(), await two.messages()]
    again = reopened(one)
    assert [await again.messages(), await Conversation("two", again.store).messages()] == before


async def test_a_thread_is_a_file_that_only_grows_by_a_line_for_each_commit(
    tmp_path: Path,
) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path / "a" / "b"))
    file = tmp_path / "a" / "b" / "thread.jsonl"
    assert not file.exists()
    async with conversation.turn("u1") as turn:
        sizes = [file.read_bytes()]
        await turn.append("text")
        sizes.append(file.read_bytes())
        turn.call(["x"])
        await turn.result("x", "ok")
        sizes.append(file.read_bytes())
    sizes.append(file.read_bytes())
    assert files(tmp_path / "a" / "b") == ["thread.jsonl"]
    for n, (before, after) in enumerate(itertools.pairwise(sizes), 1):
        assert after.startswith(before)
        assert after.count(b"\n") == n + 1
    assert all(isinstance(json.loads(line), list) for line in sizes[-1].splitlines())


async def test_its_files_and_its_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = JsonlTranscript(tmp_path / "conversations")
        async with Conversation("thread", store).turn("a secret"):
            pass
        store.close()
    finally:
        os.umask(before)
    folder = tmp_path / "conversations"
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.glob("*.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600


async def test_what_was_in_progress_at_a_crash_loads_as_incomplete(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    async with conversation.turn("u1") as turn:
        await turn.append("half an ans")
        await turn.call(["x", "y"])
        await turn.result("y", "ok")
        copied = tmp_path / "as it is now"
        copied.mkdir()
        shutil.copy(tmp_path / "thread.jsonl", copied)
        crashed = Conversation("thread", JsonlTranscript(copied))
        user, answer, x, y = await crashed.messages()
        assert (answer.content, answer.status) == ("half an ans", "incomplete")
        assert (x.content, x.tool_call_id, x.status) == ("cancelled", "x", "incomplete")
        assert (y.content, y.tool_call_id, y.status) == ("ok", "y", "completed")
        fork = await crashed.fork("fork")
        assert await fork.messages() == [user, answer, x, y]
        async with crashed.turn("u2") as turn_after:
            assert list(turn_after.history) == [user, answer, x, y]


async def test_a_turn_that_a_crash_cut_off_is_taken_out_of_the_thread(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    async with conversation.turn("u1", id="mine") as turn:
        await turn.append("half an ans")
        copied = tmp_path / "as it is now"
        copied.mkdir()
        shutil.copy(tmp_path / "thread.jsonl", copied)
        crashed = Conversation("thread", JsonlTranscript(copied))
        assert await crashed.take_out("mine")
        assert await crashed.messages() == []


@pytest.mark.parametrize(
    "torn", [b"[", b'[{"turn":"x","op":"op', b'[]{"' + b"x" * 200_000, b"\0\0\0", b"[]"]
)
@pytest.mark.parametrize("exchanges", [0, 2])
async def test_a_torn_last_line_is_passed_over_and_cut_off_by_the_next_write(
    tmp_path: Path, torn: bytes, exchanges: int
) -> None:
    file = tmp_path / "thread.jsonl"
    file.touch()
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    for n in range(exchanges):
        await say(conversation, f"u{n}", f"a{n}")
    whole = file.read_bytes()
    file.write_bytes(whole + torn)

    messages = await conversation.messages()
    again = reopened(conversation)
    assert await again.messages() == messages
    assert file.read_bytes() == whole + torn  # reading changes nothing
    await say(again, "u", "a")
    assert file.read_bytes().startswith(whole + b"[{")
    last = reopened(again)
    assert contents(await last.messages()) == [
        *(f"{who}{n}" for n in range(exchanges) for who in "ua"),
        *("u", "a"),
    ]


async def test_a_write_that_fails_is_taken_back(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    await say(conversation, "u1", "a1")
    file = tmp_path / "thread.jsonl"
    whole = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            async with conversation.turn("u2"):
                raise AssertionError
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == whole
    await say(conversation, "u3", "a3")
    assert contents(await conversation.messages()) == ["u1", "a1", "u3", "a3"]


@pytest.mark.trio_only("its threads are Trio's")
async def test_a_write_that_fails_takes_back_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write is stuck, then fails; the second comes meanwhile, and waits."""
    store = JsonlTranscript(tmp_path, fsync=True)
    file = tmp_path / "thread.jsonl"
    file.touch()
    stuck = trio.Event()
    coming, second_wrote = threading.Event(), threading.Event()

    def fsync(descriptor: int) -> None:
        if not coming.is_set():
            trio.from_thread.run_sync(stuck.set)
            coming.wait()
            # That another waits for a lock cannot be seen; that it did not, it tells by itself.
            assert not second_wrote.wait(0.05)
            raise BrokenPipeError
        second_wrote.set()

    monkeypatch.setattr(os, "fsync", fsync)

    async def first() -> None:
        with pytest.raises(BrokenPipeError):
            await store.append("thread", [{"turn": "first"}])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await stuck.wait()
        nursery.start_soon(store.append, "thread", [{"turn": "second"}])
        await wait_all_tasks_blocked()
        coming.set()
    assert file.read_bytes() == b'[{"turn":"second"}]\n'


async def test_pieces_of_text_that_are_not_awaited_are_one_record(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    async with conversation.turn("?") as turn:
        for piece in ("a", "b", "c"):
            turn.append(piece)
    last = (tmp_path / "thread.jsonl").read_bytes().splitlines()[-1]
    assert [record["op"] for record in json.loads(last)] == ["append", "end"]
    assert contents(await conversation.messages()) == ["?", "abc"]


@pytest.mark.parametrize("fsync", [True, False])
async def test_with_fsync_every_commit_and_the_new_file_reach_the_disk(
    tmp_path: Path, fsync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    store = JsonlTranscript(tmp_path, fsync=fsync)
    assert store.fsync is fsync
    await say(Conversation("thread", store), "u1", "a1")
    file, folder = os.stat(tmp_path / "thread.jsonl").st_ino, os.stat(tmp_path).st_ino
    assert synced == ([file, folder, file] if fsync else [])


async def test_a_write_whose_new_file_did_not_reach_the_disk_takes_back_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = False
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if synced[-1] and not works:
            raise OSError(errno.EINVAL, "this file system does not do that")

    monkeypatch.setattr(os, "fsync", fsync)
    store = JsonlTranscript(tmp_path, fsync=True)
    with pytest.raises(OSError, match="does not do that"):
        await store.append("thread", [{"turn": "first"}])
    assert await store.load("thread") == []
    works = True
    await store.append("thread", [{"turn": "second"}])
    assert await store.load("thread") == [[{"turn": "second"}]]
    assert synced == [False, True, False, True]


async def test_files_are_read_in_threads(tmp_path: Path) -> None:
    """A file that cannot be read yet holds up no other file."""
    os.mkfifo(tmp_path / "thread.jsonl")
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    found = []

    async def read() -> None:
        found.append(await conversation.messages())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert found == []
        await trio.to_thread.run_sync((tmp_path / "thread.jsonl").write_bytes, b"")
    assert found == [[]]


@pytest.mark.parametrize(
    "thread_id",
    ["", " ", ".", "..", "../up", "a/b", "/etc/passwd", "..\\up", "a\\b", "a\0b", "a/../../b"],
)
async def test_a_thread_id_that_is_empty_or_could_leave_the_folder_is_a_value_error(
    tmp_path: Path, thread_id: str
) -> None:
    store = JsonlTranscript(tmp_path / "folder")
    with pytest.raises(ValueError, match="thread id"):
        Conversation(thread_id, store)
    with pytest.raises(ValueError, match="thread id"):
        store.check(thread_id)
    with pytest.raises(ValueError, match="thread id"):
        await store.load(thread_id)
    with pytest.raises(ValueError, match="thread id"):
        await store.append(thread_id, [])
    assert files(tmp_path) == ["folder"]
    assert files(tmp_path / "folder") == []


@pytest.mark.parametrize("thread_id", ["session:alice", "…", "a b", "..a", ".hidden", "a.jsonl"])
async def test_any_other_thread_id_is_a_file_in_the_folder(tmp_path: Path, thread_id: str) -> None:
    conversation = Conversation(thread_id, JsonlTranscript(str(tmp_path)))
    await say(conversation, "u1", "a1")
    assert files(tmp_path) == [f"{thread_id}.jsonl"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2"),
        (b"", "line 2"),
        (b"\xff", "line 2"),
        (b"{}", "line 2: not a list of records"),
        (b"[5]", "commit 2, which"),
        (b"[{}]", "commit 2, which"),
        (b'[{"turn":"x","op":"append","text":"?"}]', "commit 2, which"),
        (b'[{"turn":[],"op":"append","text":"?"}]', "commit 2, which"),
        (b'[{"turn":"x","op":"copy","messages":[]}]', "commit 2, which"),
        (b'[{"turn":"x","op":"copy","messages":[{"tool_calls":[],"role":1}]}]', "commit 2"),
        (b'[{"turn":"x","op":"copy","messages":[5]}]', "commit 2, which"),
        (
            b'[{"turn":"%b","op":"open","contents":["?"]}]',
            "commit 2, which",
        ),
        (b'[{"turn":"%b","op":"append","text":5}]', "commit 2, which"),
        (b'[{"turn":"%b","op":"call","calls":[{}]}]', "commit 2, which"),
        (
            b'[{"turn":"%b","op":"result","call":"c","content":1}]',
            "commit 2, which",
        ),
        (
            b'[{"turn":"%b","op":"end","status":"in_progress"}]',
            "commit 2, which",
        ),
        (b'[{"turn":"%b","op":"dance"}]', "commit 2, which"),
    ],
)
async def test_a_file_that_somebody_else_has_written_to_is_a_transcript_error(
    tmp_path: Path, line: bytes, words: str
) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    async with conversation.turn("u1") as turn:
        pass
    file = tmp_path / "thread.jsonl"
    lines = file.read_bytes().splitlines()
    lines.insert(1, line.replace(b"%b", turn.id.encode()))
    file.write_bytes(b"\n".join([*lines, b""]))
    again = reopened(conversation)
    for _ in range(2):  # and so it is every time
        with pytest.raises(TranscriptError, match=words) as caught:
            await again.messages()
        assert "thread" in str(caught.value)
    with pytest.raises(TranscriptError, match=words):
        async with again.turn("u2"):
            raise AssertionError


async def test_a_bad_line_is_named_also_by_who_has_read_those_before_it(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    await say(conversation, "u1", "a1")
    await conversation.messages()
    file = tmp_path / "thread.jsonl"
    file.write_bytes(file.read_bytes() + b"{\n")
    with pytest.raises(TranscriptError, match="line 3"):
        await conversation.messages()


async def test_a_file_that_was_repaired_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "thread.jsonl"
    good = b'[{"turn":"x","op":"open","contents":["?"]},{"turn":"x","op":"append","text":"!"}]\n'
    file.write_bytes(good.replace(b'"text"', b'"texts"'))
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    with pytest.raises(TranscriptError):
        await conversation.messages()
    file.write_bytes(good)
    assert contents(await conversation.messages()) == ["?", "!"]


async def test_a_file_that_cannot_be_read_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "thread.jsonl").mkdir()
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    with pytest.raises(IsADirectoryError):
        await conversation.messages()


async def test_a_message_that_json_cannot_hold_is_not_written(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    with pytest.raises(TypeError):
        await store.append("thread", [{"turn": object()}])
    assert files(tmp_path) == []


# ---- one store for a folder


def test_a_folder_belongs_to_one_store_object(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    for _ in range(2):
        with pytest.raises(TranscriptLockedError, match="another object of this process") as caught:
            JsonlTranscript(tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert (caught.value.folder, caught.value.pid) == (tmp_path, os.getpid())
    store.close()
    store.close()
    second = JsonlTranscript(tmp_path)
    del second
    gc.collect()
    JsonlTranscript(tmp_path).close()


async def test_a_store_that_is_closed_neither_reads_nor_writes(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    await say(conversation, "u1", "a1")
    again = reopened(conversation)
    before = (tmp_path / "thread.jsonl").read_bytes()
    with pytest.raises(RuntimeError, match="is closed"):
        await conversation.messages()
    with pytest.raises(RuntimeError, match="is closed"):
        await conversation.store.append("thread", [])
    assert isinstance(conversation.store, JsonlTranscript)
    with pytest.raises(RuntimeError, match="is closed"):
        await conversation.store.repair("thread")
    assert (tmp_path / "thread.jsonl").read_bytes() == before
    assert contents(await again.messages()) == ["u1", "a1"]


OWNER = """
import sys
from trio_lanes.agents import JsonlTranscript
store = JsonlTranscript(sys.argv[1])
print("it is mine", flush=True)
sys.stdin.read()
"""


@pytest.mark.real_processes
def test_the_folder_of_another_process_is_refused_until_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"it is mine\n"
        with pytest.raises(TranscriptLockedError, match=f"in use by process {owner.pid}") as caught:
            JsonlTranscript(tmp_path)
        assert caught.value.pid == owner.pid
        owner.kill()
        owner.wait()
    JsonlTranscript(tmp_path).close()


def test_the_owner_of_a_folder_may_be_unknown(tmp_path: Path) -> None:
    owner = sqlite3.connect(tmp_path / ".owner", isolation_level=None)
    owner.execute("BEGIN IMMEDIATE")
    with pytest.raises(TranscriptLockedError, match="in use by another process") as caught:
        JsonlTranscript(tmp_path)
    assert caught.value.pid is None
    owner.close()


@pytest.mark.parametrize("what", ["no database", "a folder"])
def test_a_folder_that_cannot_be_locked_is_an_os_error(tmp_path: Path, what: str) -> None:
    lock = tmp_path / ".owner"
    if what == "a folder":
        lock.mkdir()
    else:
        lock.write_bytes(b"x" * 4096)
    with pytest.raises(OSError, match="cannot be locked"):
        JsonlTranscript(tmp_path)


# ---- damaged lines


async def test_a_repair_moves_damaged_lines_aside_and_names_them(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    for n in range(4):
        await say(conversation, f"u{n}", f"a{n}")
    file = tmp_path / "thread.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b"x" + lines[2]  # the beginning of the second turn, so its end is damaged too
    lines[5] = b"\n"
    lines[6] = lines[0][:-2] + b',{"turn":"y","op":"open","contents":[]}]\n'
    file.write_bytes(b"".join(lines) + b"torn")
    again = reopened(conversation)
    store = again.store
    assert isinstance(store, JsonlTranscript)
    with pytest.raises(TranscriptError, match=re.escape(f"{file}, line 3: ")):
        await again.messages()

    told = await store.repair("thread")
    assert [re.findall(r"(?:line|commit) (\d+)", one)[0] for one in told] == list("34678")
    aside = (tmp_path / "thread.jsonl.damaged").read_bytes()
    assert aside == b"".join(lines[n] for n in (2, 3, 5, 6, 7))
    assert contents(await again.messages()) == ["u0", "a0", "u2", ""]
    await say(again, "u", "a")
    assert contents(await reopened(again).messages()) == ["u0", "a0", "u2", "", "u", "a"]
    assert files(tmp_path) == ["thread.jsonl", "thread.jsonl.damaged"]


async def test_a_repair_of_what_is_whole_changes_nothing(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    assert await store.repair("thread") == []
    assert files(tmp_path) == []
    await say(Conversation("thread", store), "u", "a")
    before = os.stat(tmp_path / "thread.jsonl")
    assert await store.repair("thread") == []
    assert os.stat(tmp_path / "thread.jsonl") == before
    assert files(tmp_path) == ["thread.jsonl"]


async def test_a_conversation_that_was_repaired_goes_on_where_it_was(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    conversation = Conversation("thread", store)
    await say(conversation, "u0", "a0")
    async with conversation.turn("u1") as turn:
        await turn.append("half ")
        file = tmp_path / "thread.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([lines[0], b"{\n", *lines[2:]]))
        (told,) = await store.repair("thread")
        assert "line 2" in told
        await turn.append("of it")
    for one in (conversation, reopened(conversation)):
        if one is not conversation:
            assert contents(await one.messages()) == ["u0", "", "u1", "half of it"]


@pytest.mark.parametrize("thread_id", ["x" * 241, "é" * 121, "x" * 250, "\ud800"])
def test_a_thread_id_that_no_file_can_have_is_a_value_error(tmp_path: Path, thread_id: str) -> None:
    with pytest.raises(ValueError, match=r"240 bytes|surrogates"):
        Conversation(thread_id, JsonlTranscript(tmp_path))


@pytest.mark.parametrize("thread_id", ["x" * 240, "é" * 120])
async def test_the_longest_thread_id_can_be_written_and_repaired(
    tmp_path: Path, thread_id: str
) -> None:
    store = JsonlTranscript(tmp_path)
    await say(Conversation(thread_id, store), "u", "a")
    file = tmp_path / f"{thread_id}.jsonl"
    file.write_bytes(b"{\n" + file.read_bytes())
    assert len(await store.repair(thread_id)) == 1
    assert len(files(tmp_path)) == 2


# ---- long threads


async def test_a_turn_reads_what_the_thread_has_gained_and_not_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn has a conversation object of its own, as in a service."""
    read: list[int] = []  # bytes of the file, by turn
    parsed: list[int] = []
    loads = json.loads

    class Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> Any:
            data = super().read(size)
            read[-1] += len(data)
            return data

    def count_open(path: Path, mode: str, **options: Any) -> Any:
        return Counted(path) if mode == "rb" else open(path, mode, **options)

    def count_parsed(data: bytes) -> Any:
        parsed[-1] += len(data)
        return loads(data)

    store = JsonlTranscript(tmp_path)
    await say(Conversation("long", store), "u", "a")
    file = tmp_path / "long.jsonl"
    long = file.read_bytes()
    id = loads(long.splitlines()[0])[0]["turn"].encode()
    file.write_bytes(b"".join(long.replace(id, b"%016x" % n) for n in range(1_200)))
    whole = os.stat(file).st_size
    monkeypatch.setattr(f"{JSONL}.open", count_open, raising=False)
    monkeypatch.setattr(json, "loads", count_parsed)
    for _ in range(6):
        read.append(0)
        parsed.append(0)
        await say(Conversation("long", store), "u", "a")
    assert read[0] == parsed[0] + 2_400 == whole
    assert max(read[1:]) < 3 * len(long)
    assert max(parsed[1:]) < 3 * len(long)


async def test_a_file_that_was_deleted_or_replaced_is_read_anew(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    old = Conversation("thread", store)
    for n in range(3):
        await say(old, f"u{n}", f"a{n}")
    file = tmp_path / "thread.jsonl"
    before = file.read_bytes()
    lines = before.splitlines(keepends=True)
    for now, expected in (
        ([], []),
        (lines[:2], ["u0", "a0"]),
        (lines, ["u0", "a0", "u1", "a1", "u2", "a2"]),
        ([b"[]\n", *lines[2:]], ["u1", "a1", "u2", "a2"]),
        ([b"[]" + b" " * 999 + b"\n", *lines], ["u0", "a0", "u1", "a1", "u2", "a2"]),
    ):
        file.unlink(missing_ok=True)
        if now:
            file.write_bytes(b"".join(now))
        for conversation in (old, Conversation("thread", store)):
            assert contents(await conversation.messages()) == expected


async def test_few_threads_and_few_marks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{JSONL}._MARKS", 2)
    monkeypatch.setattr("trio_lanes.agents._conversations.recent.THREADS", 2)
    monkeypatch.setattr("trio_lanes.agents._conversations.recent.COMMITS", 9)
    store = JsonlTranscript(tmp_path)
    for round in range(4):
        for name in ("one", "two", "three"):
            await say(Conversation(name, store), f"u{round}", f"a{round}")
            messages = contents(await Conversation(name, store).messages())
            assert messages == [f"{who}{n}" for n in range(round + 1) for who in "ua"]


def test_repr_shows_the_folder(tmp_path: Path) -> None:
    assert repr(str(tmp_path)) in repr(JsonlTranscript(tmp_path))
