"""What the page is sent of single values."""

from decimal import Decimal

from trio_lanes.monitor._shown import shown


def test_a_decimal_is_shown_as_it_is_written() -> None:
    assert shown({"usd": Decimal("2.50")}) == {"usd": "2.50"}
