"""`store_named`: applications take the name of a store as the command does."""

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
