"""The programs and what they print are on their pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import ROOT

FOLDER = ROOT / "examples" / "asyncio_agents"
PAGES = sorted((ROOT / "docs" / "agents").glob("*.md"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.*")), ids=lambda path: path.name)
def test_every_program_and_what_it_prints_is_shown_on_a_page(path: Path) -> None:
    shown = f"examples/asyncio_agents/{path.name}\n"
    assert any(shown in page.read_text("utf-8") for page in PAGES)
