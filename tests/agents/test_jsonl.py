"""JsonlTranscript: files that only grow, and what a crash leaves of them."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_lanes.agents import Conversation, JsonlTranscript, Message, TranscriptError


async def say(conversation: Conversation, question: str, answer: str) -> None:
    async with conversation.turn(question) as turn:
        await turn.finish(answer)


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
    for conversation in (one, two):
        again = Conversation(conversation.thread_id, JsonlTranscript(tmp_path))
        assert await again.messages() == await conversation.messages()


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
    assert os.listdir(tmp_path / "a" / "b") == ["thread.jsonl"]
    for n, (before, after) in enumerate(itertools.pairwise(sizes), 1):
        assert after.startswith(before)
        assert after.count(b"\n") == n + 1
    assert all(isinstance(json.loads(line), list) for line in sizes[-1].splitlines())


async def test_what_was_in_progress_at_a_crash_loads_as_incomplete(tmp_path: Path) -> None:
    conversation = Conversation("thread", JsonlTranscript(tmp_path))
    async with conversation.turn("u1") as turn:
        await turn.append("half an ans")
        await turn.call(["x", "y"])
        await turn.result("y", "ok")
        crashed = Conversation("thread", JsonlTranscript(tmp_path))
        user, answer, x, y = await crashed.messages()
        assert (answer.content, answer.status) == ("half an ans", "incomplete")
        assert (x.content, x.tool_call_id, x.status) == ("cancelled", "x", "incomplete")
        assert (y.content, y.tool_call_id, y.status) == ("ok", "y", "completed")
        fork = await crashed.fork("fork")
        assert await fork.messages() == [user, answer, x, y]
        async with crashed.turn("u2") as turn_after:
            assert list(turn_after.history) == [user, answer, x, y]


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

    again = Conversation("thread", JsonlTranscript(tmp_path))
    assert await again.messages() == await conversation.messages()
    assert file.read_bytes() == whole + torn  # reading changes nothing
    await say(again, "u", "a")
    assert file.read_bytes().startswith(whole + b"[{")
    last = Conversation("thread", JsonlTranscript(tmp_path))
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
    """A file that cannot be read yet holds up nobody else."""
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
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("thread_id", ["session:alice", "…", "a b", "..a", ".hidden", "a.jsonl"])
async def test_any_other_thread_id_is_a_file_in_the_folder(tmp_path: Path, thread_id: str) -> None:
    conversation = Conversation(thread_id, JsonlTranscript(str(tmp_path)))
    await say(conversation, "u1", "a1")
    assert os.listdir(tmp_path) == [f"{thread_id}.jsonl"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2"),
        (b"", "line 2"),
        (b"\xff", "line 2"),
        (b"{}", "line 2: not a list of records"),
        (b"[5]", "commit 1 is not valid"),
        (b"[{}]", "commit 1 is not valid"),
        (b'[{"turn":"x","op":"append","text":"?"}]', "commit 1 is not valid"),
        (b'[{"turn":[],"op":"append","text":"?"}]', "commit 1 is not valid"),
        (b'[{"turn":"x","op":"copy","messages":[]}]', "commit 1 is not valid"),
        (b'[{"turn":"x","op":"copy","messages":[{"tool_calls":[],"role":1}]}]', "commit 1"),
        (b'[{"turn":"x","op":"copy","messages":[5]}]', "commit 1 is not valid"),
        (b'[{"turn":"%b","op":"open","contents":["?"]}]', "commit 1 is not valid"),
        (b'[{"turn":"%b","op":"append","text":5}]', "commit 1 is not valid"),
        (b'[{"turn":"%b","op":"call","calls":[{}]}]', "commit 1 is not valid"),
        (b'[{"turn":"%b","op":"result","call":"c","content":1}]', "commit 1 is not valid"),
        (b'[{"turn":"%b","op":"end","status":"in_progress"}]', "commit 1 is not valid"),
        (b'[{"turn":"%b","op":"dance"}]', "commit 1 is not valid"),
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
    again = Conversation("thread", JsonlTranscript(tmp_path))
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


async def test_what_is_no_json_is_not_written(tmp_path: Path) -> None:
    store = JsonlTranscript(tmp_path)
    with pytest.raises(TypeError):
        await store.append("thread", [{"turn": object()}])
    assert os.listdir(tmp_path) == []


def test_repr_shows_the_folder(tmp_path: Path) -> None:
    assert repr(str(tmp_path)) in repr(JsonlTranscript(tmp_path))
