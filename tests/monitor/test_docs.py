"""The application that the docs show."""

from __future__ import annotations

import pytest

from examples.howto.monitor import application
from tests.monitor.web import ask
from trio_lanes import open_lanes


async def test_the_application_of_the_docs_lets_in_those_with_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPERATOR_KEY", "o")
    monkeypatch.setenv("READER_KEY", "r")
    async with open_lanes({"main": 1}) as lanes:
        app = application(lanes)
        assert (await ask(app, "/lanes/")).status == 403
        for key, role in (("o", "operate"), ("r", "read")):
            assert (await ask(app, "/lanes/", cookie=f"key={key}")).status == 200
            access = await ask(app, "/lanes/access", cookie=f"key={key}")
            assert access.json["role"] == role
