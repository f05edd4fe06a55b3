"""Durable inboxes on a simulated cluster: kills, stops, cuts and lost messages."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes.agents import DurableInbox, DurableTurn, SettledKind, WhenBusy, inbox_handler
from trio_lanes.durable import RetryPolicy, StoreUnavailableError
from trio_lanes.durable.testing import Faults, open_cluster

MODES = (WhenBusy.STEER, WhenBusy.FOLLOWUP, WhenBusy.COLLECT, WhenBusy.INTERRUPT)


class Transcripts:
    """The transcripts of sessions: an entry has the id of its message, and is written once."""

    def __init__(self) -> None:
        self.entries: dict[str, list[str]] = {}

    def add(self, session: str, id: str) -> None:
        if id not in self.entries.setdefault(session, []):
            self.entries[session].append(id)

    async def handler(self, turn: DurableTurn) -> list[str]:
        for id in turn.ids:
            self.add(turn.session, id)
        await trio.sleep(1.0)
        await turn.take()
        for id, _ in turn.steers:
            self.add(turn.session, id)
        await trio.sleep(1.0)
        return turn.ids


@pytest.mark.parametrize("seed", range(3))
async def test_no_accepted_message_is_lost_doubled_or_out_of_order(
    seed: int, autojump_clock: MockClock
) -> None:
    transcripts = Transcripts()
    chance = random.Random(seed)
    receipts: dict[str, list[tuple[int, Any, WhenBusy]]] = {}
    # after a jump of the store's clock runs may overlap, which a list cannot refuse by a fence
    faults = Faults(kills=15, cuts=10, jumps=math.inf)
    async with open_cluster(
        {"answer": inbox_handler(transcripts.handler)},
        {"main": 4},
        seed=seed,
        faults=faults,
        retry=RetryPolicy(max_attempts=math.inf, backoff=(0.1, 1.0)),
        max_crashes=math.inf,
        result_ttl=1e7,
    ) as cluster:

        async def post(session: str, n: int) -> None:
            mode = chance.choice(MODES[: 3 if session == "in order" else 4])
            inbox = DurableInbox(cluster.lanes, session, "answer", cap=math.inf)
            while True:
                try:
                    receipt = await inbox.post({"n": n}, id=f"{n}", when_busy=mode)
                except StoreUnavailableError:
                    continue  # it may have been accepted: the id makes it one message
                receipts.setdefault(session, []).append((n, receipt, mode))
                return

        for n in range(12):
            for session in ("in order", "interrupted"):
                await post(session, n)
            await trio.sleep(chance.choice((0.0, 0.2, 3.0)))
        cluster.end_faults()
        for session, of_session in receipts.items():
            for n, receipt, _ in of_session:
                settled = await receipt.settled()
                if settled.kind is SettledKind.CANCELLED:
                    assert session == "interrupted"
                    assert "interrupted by" in str(settled.error)
                elif settled.kind is SettledKind.STEERED and session == "interrupted":
                    pass  # its turn may have been interrupted before it wrote what it had taken
                else:
                    assert f"{n}" in transcripts.entries[session], (n, settled)
        # each entry is in the transcript once by its id; so order is what is left to check
        assert transcripts.entries["in order"] == [f"{n}" for n in range(12)]
        assert (await cluster.lanes.check()).problems == ()


@pytest.mark.parametrize("seed", range(3))
async def test_an_edit_counts_exactly_if_it_says_so(seed: int, autojump_clock: MockClock) -> None:
    chance = random.Random(seed)
    seen: dict[str, list[str]] = {}  # {message id: its content, at each time}
    edited: dict[str, bool | None] = {}  # None: its editor does not know
    fences = [0]

    async def handler(turn: DurableTurn) -> None:
        def write(id: str, content: str) -> None:
            if turn.run.fence >= fences[-1]:  # else the run was lost, and its body ends late
                fences.append(turn.run.fence)
                seen.setdefault(id, []).append(content)

        for id, content in zip(turn.ids, turn.messages, strict=True):
            write(id, content)
        for _ in range(3):
            await trio.sleep(chance.random())
            given = len(turn.steers) - len(await turn.take())
            for id, content in turn.steers[given:]:
                write(id, content)

    async def edit(receipt: Any, after: float) -> None:
        await trio.sleep(after)
        edited[receipt.id] = None
        with contextlib.suppress(StoreUnavailableError):
            edited[receipt.id] = await receipt.edit("new")

    async with (
        open_cluster(
            {"answer": inbox_handler(handler)},
            {"main": 4},
            seed=seed,
            faults=Faults(kills=15, cuts=10, jumps=math.inf),
            retry=RetryPolicy(max_attempts=math.inf, backoff=(0.1, 1.0)),
            max_crashes=math.inf,
            result_ttl=1e7,
        ) as cluster,
        trio.open_nursery() as nursery,
    ):
        inbox = DurableInbox(cluster.lanes, "alice", "answer", cap=math.inf, debounce=0.2)
        receipts = []
        for n in range(40):
            with contextlib.suppress(StoreUnavailableError):
                receipts.append(await inbox.post("old", id=f"{n}", when_busy=chance.choice(MODES)))
                nursery.start_soon(edit, receipts[-1], chance.choice((0.0, 0.5, 2.0)))
            await trio.sleep(chance.choice((0.0, 0.1, 1.0)))
        cluster.end_faults()
        for receipt in receipts:
            await receipt.settled()
        assert (await cluster.lanes.check()).problems == ()
    assert True in edited.values()
    for id, contents in seen.items():
        if edited.get(id) is True:
            assert contents[-1] == "new", (id, contents)
        elif edited.get(id) is False:
            assert set(contents) == {"old"}, (id, contents)


async def test_a_turn_that_is_killed_goes_on_with_its_messages_on_another_instance(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[int, list[str], list[Any]]] = []

    async def handler(turn: DurableTurn) -> str:
        taken = await turn.take() if turn.ids[0] == "1" else []
        seen.append((turn.run.crashes, turn.ids, taken))
        if turn.ids[0] == "0":
            await trio.sleep(5)
        elif not turn.run.crashes:
            await trio.sleep_forever()
        return "done"

    quiet = Faults(
        lost=0, late=0, doubled=0, cuts=math.inf, kills=math.inf, stops=math.inf, jumps=math.inf
    )
    async with open_cluster(
        {"answer": inbox_handler(handler)}, instances=2, faults=quiet, lease_ttl=10.0
    ) as cluster:
        inbox = DurableInbox(cluster.lanes, "alice", "answer", debounce=0.0)
        modes = [WhenBusy.STEER, WhenBusy.COLLECT, WhenBusy.COLLECT, WhenBusy.STEER]
        receipts = [
            await inbox.post(f"text {n}", id=f"{n}", when_busy=mode) for n, mode in enumerate(modes)
        ]
        await trio.sleep(10)
        assert seen[1:] == [(0, ["1", "2"], ["text 3"])]
        for number in range(2):
            cluster.kill(number)
        kinds = [(await one.settled()).kind.value for one in receipts]
        assert kinds == ["ran", "ran", "merged", "steered"]
        assert seen[2:] == [(1, ["1", "2"], ["text 3"])]
