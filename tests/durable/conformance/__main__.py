"""Whether a store does what every store must do: ``python -m tests.durable.conformance``."""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = "python -m tests.durable.conformance"
HERE: Final = str(Path(__file__).parent)
LIVES: Final = 12

Check = Callable[[], list[str]]
"""It returns what it lacks, if it is not played for want of it; or raises an error."""


def callable_of(argument: str) -> Callable[..., Any]:
    """Return what an argument ``module:name`` names."""
    module, colon, name = argument.partition(":")
    if not (module and colon and name):
        raise argparse.ArgumentTypeError(f"must be MODULE:NAME, not {argument!r}")
    try:
        found = attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # whatever a module raises when it is imported
        raise argparse.ArgumentTypeError(
            f"{argument!r}: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise argparse.ArgumentTypeError(f"{argument!r} cannot be called: it is {found!r}")
    return found  # type: ignore[no-any-return]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        PROGRAM,
        description="Play the stories that every store must pass over a store of yours, and name "
        "those that fail.",
        epilog="Run it in a checkout; your module is found as by import (PYTHONPATH). Exit code 0: "
        "nothing failed; 1: something did; 2: a bad argument. Example: "
        f"{PROGRAM} tests.durable.conformance.stores:sqlite --clock trio.testing:MockClock",
    )
    found.add_argument(
        "make",
        metavar="MODULE:MAKE",
        type=callable_of,
        help="MAKE(folder) returns a store that is not open. FOLDER is the path of a folder that "
        "only one story uses; all stores of one folder have the same data",
    )
    found.add_argument(
        "--clock",
        metavar="MODULE:CLOCK",
        type=callable_of,
        help="CLOCK() returns the clock of a story, if the store takes its time from Trio: "
        "trio.testing:MockClock, or another on which time passes by jump(seconds). With it, the "
        "stories that need such a time are played too, and random lives, in which the store must "
        "answer as the store in memory does. Without it, stories wait in real time, and a machine "
        "that stands still for a second fails some",
    )
    found.add_argument(
        "--pause",
        metavar="SECONDS",
        type=float,
        help="real seconds in which a notice of one instance reaches another "
        "(0.05; with --clock, 0)",
    )
    found.add_argument(
        "--patience",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="real seconds after which a story fails since it hangs (30)",
    )
    found.add_argument("-k", metavar="TEXT", help="play only what has TEXT in its name")
    found.add_argument("--traceback", action="store_true", help="print the traceback of each error")
    return found


def check_of(made: object) -> str | None:
    """Return what is wrong with what was made, if it is no store."""
    if inspect.iscoroutine(made):
        made.close()
        return "it is a coroutine function; it must return a store"
    return None if hasattr(made, "open") else f"it returned {made!r}, which is no store"


def checks(make: Any, clock: Any, **times: Any) -> dict[str, Check]:
    """Return all that can be played over a store, by name."""
    from .stores import memory
    from .suite import STORIES, play
    from .twins import compare_stores

    def lives_the_same(seed: int) -> list[str]:
        if clock is None:
            return ["virtual time"]
        differ = compare_stores(memory(), make, seed=seed, clock=clock)
        assert not differ, "it answers otherwise than the store in memory: " + "; ".join(differ)
        return []

    found: dict[str, Check] = {
        name: partial(play, name, make, clock=clock, **times) for name in STORIES
    }
    return found | {f"random_life_{seed}": partial(lives_the_same, seed) for seed in range(LIVES)}


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, and of groups in it; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def where(error: BaseException) -> str:
    """Return the last line of a story or life that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(HERE)]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"


def run(chosen: Mapping[str, Check], show: bool) -> int:
    """Print each failure as it comes, and the numbers at the end; return how many failed."""
    failed = 0
    lacking: Counter[str] = Counter()
    for name, check in chosen.items():
        try:
            missing = check()
        except Exception as error:
            failed += 1
            print(f"FAILED {name}", flush=True)
            for one in leaves(error):
                print(f"    {type(one).__name__}: {one}\n        {where(one)}", flush=True)
            if show:
                traceback.print_exception(error, file=sys.stdout)
        else:
            lacking.update(missing[:1])
    held = len(chosen) - failed - lacking.total()
    print(f"{held} held, {failed} failed", end="")
    for what, number in lacking.items():
        print(f", {number} need {what} and were not played", end="")
    print()
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    command = parser()
    options = command.parse_args(arguments)
    if not __debug__:
        command.error("the stories check by assert: run Python without -O")
    with tempfile.TemporaryDirectory() as folder:
        try:
            wrong = check_of(options.make(Path(folder)))
        except Exception as error:
            wrong = f"it raised {type(error).__name__}: {error}"
    if wrong is not None:
        command.error(f"argument MODULE:MAKE: {wrong}")
    everything = checks(options.make, options.clock, pause=options.pause, patience=options.patience)
    chosen = {name: check for name, check in everything.items() if (options.k or "") in name}
    if not chosen:
        command.error(f"argument -k: no name has {options.k!r}")
    return 1 if run(chosen, options.traceback) else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # stories make much happen that is worth a warning
    sys.exit(main())
