"""`Coalesce` is a value: checked where it is made, read-only after."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from trio_lanes import Coalesce


def test_only_the_key_is_needed() -> None:
    one = Coalesce("index")
    assert (one.key, one.keep, one.debounce, one.max_wait, one.while_running) == (
        "index",
        "latest",
        0.0,
        math.inf,
        "wait",
    )
    assert one == Coalesce("index", max_wait=None)
    assert len({one, Coalesce("index"), Coalesce("other")}) == 2


def test_it_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Coalesce("index").keep = "first"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"key": None}, TypeError, "key.*None"),
        ({"key": []}, TypeError, r"key.*hashable.*\[\]"),
        ({"keep": "last"}, ValueError, "keep.*latest.*first.*'last'"),
        ({"keep": 3}, ValueError, "keep.*latest.*first.*3"),
        ({"debounce": -1}, ValueError, "debounce.*-1"),
        ({"debounce": math.inf}, ValueError, "debounce.*inf"),
        ({"debounce": math.nan}, ValueError, "debounce.*nan"),
        ({"debounce": "1"}, TypeError, "debounce.*'1'"),
        ({"max_wait": -1}, ValueError, "max_wait.*-1"),
        ({"max_wait": True}, TypeError, "max_wait.*True"),
        ({"debounce": 2, "max_wait": 1}, ValueError, "max_wait.*debounce.*1.*debounce=2"),
        ({"while_running": "join"}, ValueError, "while_running.*wait.*drop.*'join'"),
        ({"while_running": None}, ValueError, "while_running.*wait.*drop.*None"),
    ],
)
def test_a_bad_value_is_refused_with_field_and_value(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Coalesce(**{"key": "index", **options})


def test_only_the_key_is_positional() -> None:
    with pytest.raises(TypeError, match="positional"):
        Coalesce("index", "first")  # type: ignore[call-arg]
