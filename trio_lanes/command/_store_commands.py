"""The commands on a store: their options and arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import click
import trio

from ..durable import DurableState, open_durable_lanes
from . import _ask, _limits
from ._answer import Answer
from ._exits import CommandError, first_leaf, one_line
from ._parameters import (
    amount,
    check_package,
    count,
    kept,
    moment,
    name,
    parse_headers,
    rate,
    reserve,
    seconds,
    seconds_or_inf,
    weight,
)
from ._show import show
from ._stores import find_store

Act = Callable[..., Awaitable[Answer]]

NAMED: Final = click.Argument(["name"], type=name, metavar="NAME")
OF: Final = click.Option(
    ["--of", "name"],
    type=name,
    metavar="NAME",
    help="Only of this lane, or of the session session:KEY.",
)
ALL: Final = click.Option(["--all", "all_"], is_flag=True, help="All of the store.")
ALSO_FAILED: Final = click.Option(
    ["--failed"], is_flag=True, help="Also jobs that failed for good and are still remembered."
)
HANDLER: Final = click.Option(
    ["--handler"], type=kept, metavar="NAME", help="Only jobs for the handler of this name."
)
ERROR_TYPE: Final = click.Option(
    ["--error"],
    type=kept,
    metavar="TYPE",
    help="Only jobs whose error has this type, such as ValueError.",
)
AFTER: Final = click.Option(
    ["--after"], type=click.IntRange(0), default=0, help="Only with ids greater than this."
)
REASON: Final = click.Option(["--reason"], help="The reason, for tasks that wait for the job.")


HEADER: Final = click.Option(
    ["--header", "headers"],
    multiple=True,
    metavar="NAME:VALUE",
    help="A header of each request, such as Cookie:key=...; may be given more than once.",
)
ASKS_PAGE: Final = (
    click.Option(
        ["--page"], metavar="URL", help="Ask the monitor of an application, in place of a store."
    ),
    HEADER,
)


def _limit(default: int) -> click.Option:
    return click.Option(
        ["--limit"], type=click.IntRange(1), default=default, show_default=True, help="At most."
    )


def _time(option: str, text: str) -> click.Option:
    return click.Option([option], type=moment, metavar="TIME", help=f"{text} ISO 8601.")


def _ids(required: bool) -> click.Argument:
    return click.Argument(
        ["ids"], type=click.IntRange(1), nargs=-1, required=required, metavar="ID..."
    )


COMMANDS: Final[Mapping[Act, Sequence[click.Parameter]]] = {
    _ask.status: (),
    _ask.instances: (),
    _ask.jobs: (
        _ids(required=False),
        OF,
        click.Option(
            ["--state", "states"],
            multiple=True,
            type=click.Choice([state.value for state in DurableState]),
            help="Only in this state; may be given more than once.",
        ),
        HANDLER,
        ERROR_TYPE,
        _time("--since", "Only jobs that were submitted at this time or later."),
        _time("--until", "Only jobs that were submitted before this time."),
        AFTER,
        _limit(50),
    ),
    _ask.why: (_ids(required=True), *ASKS_PAGE),
    _ask.health: (
        click.Option(
            ["--standstill-after"],
            type=seconds_or_inf,
            metavar="SECONDS",
            help="How long nothing of a lane may begin or end while jobs wait for its slots; inf:"
            " for ever. Default: 300; of a page, the lanes of the application say it.",
        ),
        *ASKS_PAGE,
    ),
    _ask.failures: (
        OF,
        HANDLER,
        _time("--since", "Only jobs submitted at this time or later."),
        _limit(1000),
    ),
    _ask.promote: (_ids(required=True),),
    _ask.dead: (OF, HANDLER, ERROR_TYPE, ALSO_FAILED, AFTER, _limit(50)),
    _ask.requeue: (_ids(required=False), OF, HANDLER, ERROR_TYPE, ALL, ALSO_FAILED),
    _ask.purge: (_ids(required=False), OF, HANDLER, ERROR_TYPE, ALL, ALSO_FAILED),
    _ask.pause: (
        NAMED,
        click.Option(
            ["--for", "seconds"], type=seconds, help="It ends by itself after these seconds."
        ),
    ),
    _ask.resume: (NAMED,),
    _ask.schedules: (click.Argument(["name"], type=kept, required=False, metavar="[NAME]"),),
    _ask.unschedule: (click.Argument(["name"], type=kept, metavar="NAME"),),
    _ask.clear: (NAMED, REASON),
    _ask.cancel: (_ids(required=True), REASON),
    _limits.limit: (
        NAMED,
        click.Argument(["concurrency"], type=count, required=False, metavar="[N|inf]"),
        click.Option(["--new"], is_flag=True, help="Make it."),
        click.Option(["--remove"], is_flag=True, help="Remove it; a lane must have no jobs."),
        click.Option(
            ["--rate", "rates"],
            type=rate,
            multiple=True,
            metavar="N/SECONDS[,unit=tokens][,burst=N][,algorithm=sliding]",
            help="A rate limit, in place of the present ones; may be given more than once.",
        ),
        click.Option(["--no-rate"], is_flag=True, help="Remove the rate limits."),
        click.Option(
            ["--max-waiting"], type=count, metavar="N|inf", help="How many jobs may wait."
        ),
        click.Option(
            ["--member", "members"],
            multiple=True,
            type=name,
            metavar="LANE",
            help="A lane of the group, in place of the present ones.",
        ),
        click.Option(
            ["--reserve"],
            multiple=True,
            type=reserve,
            metavar="LANE=N",
            help="Slots of the group that are kept for a lane, in place of the present ones.",
        ),
        click.Option(
            ["--fair/--no-fair"], default=None, help="Whether the owners of its jobs take turns."
        ),
        click.Option(
            ["--weight", "weights"],
            multiple=True,
            type=weight,
            metavar="OWNER=N",
            help="The weight of an owner (or tenant:*, or *) in the fair lane, in place of all "
            "present ones.",
        ),
        click.Option(
            ["--aging"],
            type=float,
            metavar="S|inf",
            help="Seconds of waiting that are worth one step of priority.",
        ),
    ),
    _limits.quota: (
        click.Argument(["name"], required=False, metavar="[NAME]"),
        click.Option(["--reset"], is_flag=True, help="Forget what was spent from it."),
        click.Option(
            ["--grant", "grants"],
            multiple=True,
            type=amount,
            metavar="UNIT=N",
            help="Let so much more be spent, until the limit's window has passed.",
        ),
        click.Option(["--by"], envvar="USER", metavar="NAME", help="Who grants it; default: USER."),
    ),
    _ask.log: (click.Argument(["name"], metavar="NAME"), AFTER, _limit(50)),
    _ask.rules: (
        click.Option(
            ["--result-ttl"],
            type=seconds,
            metavar="SECONDS",
            help="How long an ended job and its key are remembered.",
        ),
        click.Option(
            ["--max-crashes"],
            type=count,
            metavar="N|inf",
            help="How many crashes make a job dead, if the process ran no other job.",
        ),
        click.Option(
            ["--on-dead"],
            type=click.Choice(["continue", "hold"]),
            help="Whether the session of a dead job goes on.",
        ),
    ),
    _ask.check: (click.Option(["--repair"], is_flag=True, help="Repair them."),),
}
"""The options and arguments of each command, whose docstring is its help."""


def add_store_commands(group: click.Group) -> None:
    """Add the commands to a group."""
    for act, parameters in COMMANDS.items():
        group.add_command(
            click.Command(
                act.__name__,
                callback=_on_store(act),
                params=[*parameters, _STORE_OPTION, _JSON],
                help=act.__doc__,
                # so that the error of `limit main -1` is about the number
                context_settings={"ignore_unknown_options": act is _limits.limit},
            )
        )


_STORE_OPTION: Final = click.Option(
    ["--store"],
    envvar="TRIO_LANES_STORE",
    metavar="sqlite:PATH|postgresql://...|valkey://...",
    help="The store; default: TRIO_LANES_STORE in the environment.",
)
_JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


def _of_page(act: Act) -> Act:
    check_package()
    return getattr(import_module("._page", __package__), act.__name__)  # type: ignore[no-any-return]


def _on_store(act: Act) -> Callable[..., int]:
    """Return a command that calls ``act`` with the lanes of ``--store`` and shows its answer."""

    async def ask(store: str, options: dict[str, Any]) -> Answer:
        async with open_durable_lanes(find_store(store), {}, {}, worker=False) as lanes:
            return await act(lanes, **options)

    def command(store: str | None, as_json: bool, **options: Any) -> int:
        or_page = ", or '--page URL' of an application with a monitor" if "page" in options else ""
        page, headers = options.pop("page", None), options.pop("headers", ())
        if store is None and page is None:
            raise click.UsageError(f"Missing option '--store', or TRIO_LANES_STORE{or_page}")
        try:
            if page is not None:
                if options.pop("standstill_after", None) is not None:
                    raise click.UsageError("--standstill-after is for a store, not for a page")
                answer = trio.run(partial(_of_page(act), page, parse_headers(headers), **options))
            else:
                answer = trio.run(ask, str(store), options)
        except Exception as error:
            if act is not _ask.health:
                raise
            raise CommandError(f"could not look: {one_line(first_leaf(error))}") from error
        show(answer, as_json=as_json)
        return answer.code

    return command
