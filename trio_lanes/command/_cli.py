"""The command line: its options, and the exit code and message of each error."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import click
import trio

from ._exits import CRASHED, DONE, INTERRUPTED, USAGE, CommandError, exit_code, first_leaf, one_line
from ._parameters import check_package, parse_headers, seconds
from ._store_commands import HEADER, add_store_commands

EXIT_CODES: Final = """
\b
Exit codes:
  0    success; a worker has drained
  1    no job was concerned, problems were found, or a drain gave up jobs
  2    a mistake on the command line or in the application
  3    the store does not exist, is damaged, or has another version
  4    another worker has the store, which takes only one
  5    the store is not available now; try again later
  70   an unexpected exception, in the application or in this command
  130  Ctrl-C
"""


def run(arguments: Sequence[str] | None) -> int:
    """Run a command line. Return the exit code; an error is one line on standard error."""
    settings = {"traceback": False}
    try:
        return int(
            cli.main(arguments, prog_name="trio-lanes", standalone_mode=False, obj=settings) or 0
        )
    except click.ClickException as error:
        return _fail(error, error.format_message(), error.exit_code, settings)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        return _explain(error, settings)
    except BaseExceptionGroup as group:  # a group with an exception that is not an Exception
        return _explain(group, settings)


def _explain(whole: BaseException, settings: dict[str, bool]) -> int:
    error = first_leaf(whole)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    code = exit_code(error)
    if code is not None:
        return _fail(whole, one_line(error), code, settings)
    what = f"{type(error).__name__}: {one_line(error)}"
    return _fail(whole, f"{what} (--traceback shows where)", CRASHED, settings)


def _fail(error: BaseException, message: str, code: int, settings: dict[str, bool]) -> int:
    if settings["traceback"]:
        traceback.print_exception(error)
    print(f"trio-lanes: {' '.join(message.split())}", file=sys.stderr)
    return code


@click.group(
    epilog=EXIT_CODES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(version("trio-lanes"), message="%(prog)s %(version)s")
@click.option("--traceback", is_flag=True, help="Show where an error comes from.")
@click.pass_context
def cli(context: click.Context, traceback: bool) -> int:
    """Run durable lanes, inspect and control their store; watch lanes; replay recordings."""
    context.obj["traceback"] = traceback
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
    return USAGE


# ---- the worker


@cli.command()
@click.argument("application", metavar="APP:LANES")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many worker processes; more than one only on a store that takes several.",
)
@click.option(
    "--grace",
    type=seconds,
    default=30.0,
    show_default=True,
    help="How long running jobs may go on after the first signal.",
)
@click.option(
    "--cancel-grace",
    type=seconds,
    default=5.0,
    show_default=True,
    help="How long a job may take to end after it is cancelled.",
)
@click.option(
    "--kill-after",
    type=seconds,
    default=10.0,
    show_default=True,
    help="With --processes: how long a process may take to end after the grace.",
)
@click.option(
    "--reload",
    metavar="APP:FUNCTION",
    help="Called at SIGHUP; returns new limits, as for configure().",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
)
@click.option(
    "--store",
    metavar="sqlite:PATH",
    help="With --processes: the application's SQLite file, which this process owns and serves.",
)
@click.option("--line", type=int, hidden=True)
@click.option("--served", hidden=True)
def worker(
    application: str,
    processes: int,
    grace: float,
    cancel_grace: float,
    kill_after: float,
    reload: str | None,
    log_level: str,
    store: str | None,
    line: int | None,
    served: str | None,
) -> int:
    """Run the durable lanes of an application.

    APP is a module, found from the current folder; LANES is a name in it: the return value of
    open_durable_lanes(), or a function without arguments that returns it.

    After the first SIGTERM or SIGINT (or SIGHUP, without --reload) the worker claims no more jobs,
    and running jobs may end. The second signal cancels them and gives them back. SIGUSR1 gives up
    running jobs that do not end.
    """
    from ._stores import sqlite_file
    from ._supervisor import supervise
    from ._worker import WorkerOptions, run_worker

    file = None if store is None else sqlite_file(store)
    if file is not None and processes == 1 and served is None:
        raise CommandError("--store is for --processes above 1: one process opens the file itself")

    logging.basicConfig(
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",
    )
    options = WorkerOptions(
        application=application,
        grace=grace,
        cancel_grace=cancel_grace,
        reload=reload,
        line=line,
        store=file,
        served=served,
    )
    if processes == 1:
        return run_worker(options)
    return trio.run(partial(supervise, options, processes, kill_after, log_level))


# ---- what lanes do now, and what they would have done


@cli.command()
@click.argument("url")
def top(url: str, headers: Sequence[str]) -> int:
    """Show the lanes of an application that serves a monitor, until Ctrl-C.

    URL is the address of the page of trio_lanes.monitor. A lost connection is made again. Without a
    terminal, the present state is printed once.
    """
    check_package()
    from rich.console import Console

    from ._top import top as show

    console = Console(markup=False, highlight=False, emoji=False)
    return trio.run(show, url, parse_headers(headers), console)


@cli.command()
@click.argument("file")
@click.option(
    "--set",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="Another limit for a lane or a template, session:* or group:NAME; may be given more than "
    "once. N is a whole number or inf.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(file: str, limits: Sequence[str], as_json: bool) -> int:
    """Show what other limits would have done to the waits of a recording.

    FILE was written by LaneRecorder.save. Its jobs run through real lanes on a virtual clock: each
    takes as long as it took, and no code of the application runs.
    """
    from ._replay import compare, parse_limits
    from ._show import show

    show(compare(file, parse_limits(limits)), as_json=as_json)
    return DONE


top.params.append(HEADER)
add_store_commands(cli)
