"""Open the lanes, work, and end well: by itself, by one Ctrl-C, or by two."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

import trio

from trio_lanes import LaneConfig, LaneGroup, LaneInstrument, Lanes, open_lanes

INTERRUPTED: Final = 130  # the exit code of a program that Ctrl-C ended, as shells report it


async def run_with_lanes(
    work: Callable[[Lanes, trio.Nursery], Awaitable[None]],
    lanes: Mapping[str, int | float | LaneConfig],
    groups: Mapping[str, LaneGroup],
    *,
    say: Callable[[str], None],
    grace: float,
    instruments: Iterable[LaneInstrument] = (),
    on_hangup: Callable[[Lanes], None] | None = None,
    farewell: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Run `work` with new lanes, and wait for its jobs. Return the exit code.

    `work` gets the lanes, and a nursery for tasks that go on until all jobs have ended, for example
    a server. Then `farewell` is awaited, and the nursery is cancelled.

    The first SIGINT or SIGTERM cancels `work` and drains the lanes: running and waiting jobs may
    end within `grace` seconds. The second signal cancels all jobs. If `on_hangup` is given,
    each SIGHUP calls it.
    """
    gently, at_once = trio.CancelScope(), trio.CancelScope()
    complete = True
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, gently, at_once)
        with at_once:
            async with (
                open_lanes(lanes, groups=groups, instruments=instruments) as opened,
                trio.open_nursery() as beside,
            ):
                if on_hangup is not None:
                    await nursery.start(_watch_hangups, partial(on_hangup, opened))
                with gently:
                    await work(opened, beside)
                    await opened.wait_idle()
                if gently.cancel_called:
                    left = opened.statistics()
                    say(
                        f"draining: {left.active} running, {left.waiting} waiting;"
                        " Ctrl-C again to cancel"
                    )
                    resume_all(opened)  # no user is left to resume them later
                    report = await opened.drain(grace=grace)
                    complete = not (report.cancelled or report.abandoned)
                if farewell is not None:
                    await farewell()
                beside.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    if at_once.cancel_called:
        say("cancelled")
    elif not complete:
        say(f"cancelled the jobs that did not end in {grace:g} s, or were held")
    return 0 if complete and not at_once.cancel_called else INTERRUPTED


def resume_all(lanes: Lanes) -> None:
    """Resume every lane that a user paused: global lanes and session lanes.

    A pause with an end comes from the model, and is kept.
    """
    for name, lane in lanes.statistics().lanes.items():
        if lane.paused_until is None:
            lanes.resume(name)
    for key in lanes.sessions():
        lanes.session(key).resume()


async def _watch_signals(
    gently: trio.CancelScope,
    at_once: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Handle the signals while the lanes are open; a third Ctrl-C gets Python's own handler."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if gently.cancel_called:
                at_once.cancel()
                break
            gently.cancel()


async def _watch_hangups(
    call: Callable[[], None], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as hangups:
        task_status.started()
        async for _ in hangups:
            call()
