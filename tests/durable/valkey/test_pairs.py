"""The rules stand twice, in Python and in Lua: what is the same has the same name and place."""

from __future__ import annotations

import ast
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import pytest

import trio_lanes
from trio_lanes.durable._valkey import script
from trio_lanes.durable.acts import VERBS

ROOT = Path(trio_lanes.__file__).parent
MODULES = {
    path.stem: path
    for path in (
        *(ROOT / "durable/_rules").glob("[a-z]*.py"),
        *(ROOT / "durable/acts").glob("[a-z]*.py"),
        *(ROOT / "_limits").glob("[a-z]*.py"),
    )
}
PAIRS = sorted(MODULES.keys() & set(script.ORDER))
KEYWORDS = {"end": "end_job"}
"""Names that Lua does not allow, and those that it has instead."""

WITHOUT_TWIN = {
    "base": "the keys and the numbers of a namespace",
    "texts": "as the writers of the tables",
    "ready": "as the tables: ready lists",
    "records": "as the tables: jobs",
    "limits": "as the settings of the tables, and lane_limits.py",
    "tickets": "as the tables: answers.py",
    "tell": "as the waiters of the stores",
    "clock": "as the clocks of the stores",
    "select": "as the tables: `select`",
    "open": "as the opening of an engine",
    "verbs": "as `EngineStore.do`, and `Engine.once`",
}
"""The files that no module of Python has the name of, and what they are there."""

LUA_ONLY = {
    "affinity": "Homes.room",
    "blockers": "a_blocker blockers_of live_with some_runs_few ready_before",
    "budget": "Budget.label",
    "claims": """
        payload_of passed_key FairTurns.read suspected Isolation.running
        Fronts.drop Fronts.front Fronts.first Fronts.pop
    """,
    "engine": """
        runs_of set_of leave forget_done
        read_item refusal
    """,
    "holds": "holds_of",
    "inspection": """
        parked_until_now first_due schedules_due wait record_of last_messages is_head missing_from
        report_problem check_job check_index checked_indexes
    """,
    "calendar": """
        CalendarWindow.mark second store_time begins first
    """,
    "lines": "request tell serve of_instance name_of all_limits charge",
    "fair": """
        shares_key heads_of first_behind weight_class names_and_total next_class choose note_served
    """,
    "meters": """
        SlidingWindow.mark_at SlidingWindow.add
        Bucket.since_and_sum Bucket.get Bucket.put Bucket.is_replenished
    """,
    "orders": "add_clearable put_groups changed_lanes put_lanes",
    "queues": "head_of pause_of resume_sessions do_due",
    "rates": "counted_in fits class_of key_of forget_at do_counted",
    "runs": "compared keep",
    "schedules": "records_of record_of",
    "talk": "message_of put_message",
}
"""What Python leaves to its tables, to a property, or to a store that calls the rules."""

PYTHON_ONLY = {
    "affinity": "ticket_of",
    "blockers": "blockers known",
    "budget": "Budget._limit Budget.meters Budget.runs misfit",
    "calendar": """
        CalendarWindow.shortened CalendarWindow.refilled_at CalendarWindow.left CalendarWindow.unix
        CalendarWindow.end_of utc_offsets ahead_of_wall
    """,
    "claims": """
        is_paused Claims.note_skipped size read first pop shares LaneTurn._suspect
        LaneTurn.put_passed
    """,
    "engine": """
        digest is_refusal open_as_worker once keep_refusal check_joined take_in record
        is_work_left with_rates
    """,
    "fair": "key_of",
    "history": "process_key error_type in_one_line attempts attempt waits_of",
    "inspection": """
        blockers_of holds_of status_from present statistics_of next_due_of paused_of
        locks_of quotas_of by_name shown with_heads
    """,
    "lines": "terms",
    "meters": """
        put sum time SlidingWindow.refilled_at SlidingWindow.left SlidingWindow.leaves
        SlidingWindow.shortened Bucket.shortened
        Bucket.refilled_at Bucket.left Bucket.whole Bucket.dip
    """,
    "orders": "replace portion",
    "queues": "rules forget_effects advance wait_again",
    "rates": """
        noted_beside kind_of meters_of kept_until level_of names_of costs_of counted put level
        to_json from_json read
    """,
}
"""What Lua leaves to another file or to the client, and what it needs not."""

PARAMETERS = {
    "new": "schedule, lane, cost, times, due, data",  # a text, and what the rules read of it
    "next": "next_due",  # Lua has a function `next`
    "limits": "limits, meters",  # the meters are the same in whole numbers
    "seconds": "micros",
    **{name: f"new_{name}" for name in ("lanes", "groups", "rules")},
}
"""The parameters of an act in Lua that have not the name of their field, by this."""
PAGED = {"check", "repair", "clear", "requeue", "purge"}
"""The acts that begin after a number: the store asks for the next page, or portion."""


def of_lua(name: str) -> list[str]:
    """The functions of a file of the script, in order; an act by its verb."""
    text = (files(script.__package__) / "lua" / f"{name}.lua").read_text("utf-8")
    found = re.findall(r"^(?:local )?function ([\w.:]+)", text, re.M)
    tables = rf"^(?:READS|WRITES|WITH_TICKET|{name})\."
    names = [re.sub(tables, "", one).replace(":", ".") for one in found]
    return [one for one in names if not one.endswith(".new")]


def of_python(name: str) -> list[str]:
    """The functions of a module, in order, as Lua names them; an act by its verb.

    A method has the name of its class if Lua has such a class, too. The underscore before a name
    goes, unless the same name stands without it beside it.
    """
    classes = {one.split(".")[0] for one in of_lua(name) if "." in one}
    verbs = {kind.__name__: kind.name for kind in VERBS.values()}
    found = []  # (class, name)
    for node in ast.parse(MODULES[name].read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.append(("", node.name))
        elif isinstance(node, ast.ClassDef) and node.name in verbs:
            found.append(("", verbs[node.name]))
        elif isinstance(node, ast.ClassDef):
            owner = node.name.lstrip("_")
            of = f"{owner}." if owner in classes else ""
            methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            found += [(of, one) for one in methods if not one.startswith("__")]
    public = [(of, one.lstrip("_")) for of, one in found]
    return [
        f"{of}{one if public.count((of, short)) > 1 else KEYWORDS.get(short, short)}"
        for (of, one), (_, short) in zip(found, public, strict=True)
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_both_languages_stand_in_the_same_order(name: str) -> None:
    python, lua = of_python(name), of_lua(name)
    assert [one for one in lua if one in python] == [one for one in python if one in lua]


@pytest.mark.parametrize("name", PAIRS)
def test_a_function_of_one_language_alone_is_in_a_list(name: str) -> None:
    python, lua = of_python(name), of_lua(name)
    assert set(lua) - set(python) == set(LUA_ONLY.get(name, "").split())
    assert set(python) - set(lua) == set(PYTHON_ONLY.get(name, "").split())


def test_a_file_of_the_script_without_a_twin_is_in_a_list() -> None:
    assert set(script.ORDER) - set(PAIRS) == set(WITHOUT_TWIN)


@pytest.mark.parametrize("kind", VERBS.values(), ids=VERBS)
def test_the_parameters_of_an_act_are_the_fields_of_its_record(kind: type[Any]) -> None:
    text = script.source()
    (parameters,) = re.findall(rf"^function [A-Z_]+\.{kind.name}\((.*)\)$", text, re.M)
    if f"\nLISTED.{kind.name} = true\n" in text:  # there may be any number of them
        assert parameters == "arguments"
        return
    names = [PARAMETERS.get(field.name, field.name) for field in attrs.fields(kind)]
    first, last = ["instance"] * getattr(kind, "leased", 0), ["after"] * (kind.name in PAGED)
    assert parameters == ", ".join([*first, *names, *last])
