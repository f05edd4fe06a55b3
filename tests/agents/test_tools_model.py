"""run_tools under random tools, readers and cancellations: what must always hold.

Each example draws calls with scripts, limits, groups and buffers, a reader that is cancelled now
and then or leaves early, and calls that are cancelled. Tools and reader keep books; the books are
compared with the contract while it runs and when it is over.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
import trio
import trio.testing
from hypothesis import event, given
from hypothesis import strategies as st

from trio_lanes.agents import Emit, ToolCall, ToolEvent, ToolResult, ToolRun, run_tools

Step = tuple[Literal["sleep", "emit", "try to emit", "shielded sleep", "fail"], int]

seconds = st.integers(0, 3)
steps = st.tuples(
    st.sampled_from(
        ["sleep", "emit", "emit", "emit", "try to emit", "shielded sleep", "fail"],
    ),
    seconds,
)


@attrs.frozen
class Case:
    """One example."""

    scripts: list[list[Step]]
    groups: list[int | None]
    limit: float
    buffer: float
    order: Literal["call", "completion"]
    patience: list[int]  # seconds of each read until it is cancelled, over and over; 0: for ever
    cancels: list[tuple[int, int]]  # (when, the number of a call)
    leave_after: int | None  # events


@st.composite
def cases(draw: st.DrawFn) -> Case:
    scripts = draw(st.lists(st.lists(steps, max_size=6), min_size=1, max_size=6))
    number = st.integers(0, len(scripts) - 1)
    return Case(
        scripts,  # type: ignore[arg-type]  # what sampled_from() drew from is a Literal
        draw(
            st.lists(
                st.sampled_from([None, None, 1, 2]), min_size=len(scripts), max_size=len(scripts)
            )
        ),
        draw(st.sampled_from([1, 2, 3, math.inf])),
        draw(st.sampled_from([0, 1, 2, math.inf])),
        draw(st.sampled_from(["call", "completion"])),
        draw(st.lists(seconds, min_size=1, max_size=4)),
        draw(st.lists(st.tuples(st.integers(0, 8), number), max_size=3)),
        draw(st.none() | st.none() | st.integers(0, 12)),
    )


class ToolError(Exception):
    """What tools raise here."""


class Books:
    """Who ran when, what was said, and what was heard."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.said: list[list[str]] = [[] for _ in case.scripts]
        self.heard: list[ToolEvent] = []
        self.started: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.running: set[int] = set()

    def calls(self) -> list[ToolCall]:
        return [
            ToolCall(str(n), self.tool(n, script), serial_group=group)
            for n, (script, group) in enumerate(
                zip(self.case.scripts, self.case.groups, strict=True)
            )
        ]

    def tool(self, number: int, script: list[Step]) -> Any:
        async def fn(emit: Emit) -> int:
            self.start(number)
            try:
                for n, (what, time) in enumerate(script):
                    await self.do(number, emit, what, time, f"{number}.{n}")
                return number
            finally:
                self.running.remove(number)
                self.ended[number] = trio.current_time()

        return fn

    def start(self, number: int) -> None:
        group = self.case.groups[number]
        self.started[number] = trio.current_time()
        self.running.add(number)
        assert len(self.running) <= self.case.limit
        if group is not None:
            assert [n for n in self.running if self.case.groups[n] == group] == [number]
            assert all(n <= number for n in self.started if self.case.groups[n] == group)

    async def do(self, number: int, emit: Emit, what: str, time: int, output: str) -> None:
        if what == "sleep":
            await trio.sleep(time)
        elif what == "shielded sleep":
            with trio.CancelScope(shield=True):
                await trio.sleep(time)
        elif what == "fail":
            raise ToolError
        else:
            with trio.CancelScope() as scope:
                if what == "try to emit":
                    scope.deadline = trio.current_time() + time
                await emit(output)
                self.said[number].append(output)
                self.check_buffer(number)

    def check_buffer(self, number: int) -> None:
        """What was said and not heard fits the buffer."""
        mine = [number] if self.case.order == "call" else range(len(self.said))
        heard = sum(e.kind == "output" and e.output_index in mine for e in self.heard)
        assert sum(len(self.said[n]) for n in mine) - heard <= self.case.buffer

    def check_events(self, *, all_of_them: bool) -> None:
        assert [e.sequence_number for e in self.heard] == list(range(len(self.heard)))
        if self.case.order == "call":
            assert [e.output_index for e in self.heard] == sorted(
                e.output_index for e in self.heard
            )
        for n, said in enumerate(self.said):
            mine = [e for e in self.heard if e.output_index == n]
            ends = [e for e in mine if e.kind != "output"]
            assert ends == mine[-1:] if ends else not all_of_them
            heard = [e.data for e in mine if e.kind == "output"]
            assert heard == (said if all_of_them else said[: len(heard)])

    def check_results(self, results: list[ToolResult]) -> None:
        assert [result.id for result in results] == [str(n) for n in range(len(self.said))]
        cancelled = {n for _, n in self.case.cancels}
        for n, result in enumerate(results):
            if result.kind == "result":
                assert result.value == n
            elif result.kind == "error":
                assert isinstance(result.value, ToolError)
            else:
                assert result.kind == "cancelled"
                assert n in cancelled or self.case.leave_after is not None
        for e in self.heard:
            if e.kind != "output":
                assert (e.kind, e.data) == (
                    results[e.output_index].kind,
                    results[e.output_index].value,
                )

    def check_permits(self) -> None:
        """No call started while an earlier one could have, at another time than that one did."""
        for late, group in enumerate(self.case.groups):
            before = [n for n in range(late) if group is not None and self.case.groups[n] == group]
            # One that never started was cancelled; when it ended is not known here.
            if late not in self.started or any(n not in self.ended for n in before):
                continue
            eligible = max((self.ended[n] for n in before), default=0.0)
            for n, time in self.started.items():
                assert not (n > late and eligible < time < self.started[late])


async def read(run: ToolRun, books: Books) -> None:
    patience = books.case.patience
    turn = 0
    while books.case.leave_after is None or len(books.heard) < books.case.leave_after:
        # Patience grows with each round, or a reader that never waits long enough never ends.
        seconds = patience[turn % len(patience)] or math.inf
        turn += 1
        with trio.move_on_after(seconds * (1 + turn / 10)):
            try:
                books.heard.append(await anext(run))
            except StopAsyncIteration:
                return


@given(st.random_module(), cases())
def test_whatever_tools_and_their_reader_do_the_contract_holds(seed: object, case: Case) -> None:
    books = Books(case)

    async def cancel(run: ToolRun, when: int, number: int) -> None:
        await trio.sleep(when)
        had_ended = any(result.id == str(number) for result in run.results)
        assert run.cancel(str(number)) is not had_ended

    async def main() -> None:
        async with run_tools(
            books.calls(), limit=case.limit, order=case.order, buffer=case.buffer
        ) as run:
            async with trio.open_nursery() as nursery:
                for when, number in case.cancels:
                    nursery.start_soon(cancel, run, when, number)
                await read(run, books)
                nursery.cancel_scope.cancel()
        everything = case.leave_after is None or len(books.heard) < case.leave_after
        event("read all" if everything else "left early")
        books.check_events(all_of_them=everything)
        books.check_results(run.results)
        books.check_permits()
        assert books.running == set()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
