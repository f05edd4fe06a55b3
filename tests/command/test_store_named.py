"""`store_named`: applications take the name of a store as the command does."""

import traceback
from pathlib import Path

import pytest

from trio_lanes.command import store_named
from trio_lanes.durable import SqliteStore


def test_a_store_that_does_not_exist_yet_can_be_named(tmp_path: Path) -> None:
    store = store_named(f"sqlite:{tmp_path / 'jobs.db'}")
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "jobs.db"
    assert not store.path.exists()
    assert "namespace 'jobs'" in repr(store_named("postgresql://db/app#jobs"))


@pytest.mark.parametrize("name", ["jobs.db", "sqlite:", "mysql://db", "postgresql://db/app#No"])
def test_a_malformed_name_is_refused_with_a_word(name: str) -> None:
    with pytest.raises(ValueError, match=r"use: sqlite:PATH|namespace"):
        store_named(name)


# what a person mistypes, with a password in it; no text of a library may repeat it
MISTYPED = (
    "postgresql:/me:{}@x", "postgresql//me:{}@x", "postgres:me:{}@x/y", "postgresql://me:{}@[x/y",
    "postgresql://me:{}@x:port/y", "postgresql://me:{}@x/y?bad=1", "postgresql://me:{}%zz@x/y",
    "postgresql://me:{}/more@x/y", "postgresql://me:a/{}@x/y", "postgresql://me:{}@x/y z",
    "valkey:/me:{}@x", "valkey://me:{}@x/db", "valkey://me:{}/more@x", "valkey://:{}@x:port/0",
    "valkey://me:a/{}@x", "redis:{}@x", "valkey://me:{}@[x", "mysql://me:{}@x",
    "host=x password={} bad",
)  # fmt: skip


@pytest.mark.parametrize("shape", MISTYPED)
def test_no_error_about_the_name_of_a_store_has_its_password(shape: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        store_named(shape.format("hunter2secret"))
    shown = "".join(traceback.format_exception(raised.value)[-1:])
    assert "hunter2secret" not in shown + repr(raised.value.__context__)
