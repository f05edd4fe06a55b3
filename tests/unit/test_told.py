"""What an operator is told besides problems, as a line."""

from trio_lanes._config.told import Told


def test_a_line_has_its_advice_if_there_is_one() -> None:
    assert str(Told("the oldest wait is of 60 s", "cancel 1")) == (
        "the oldest wait is of 60 s: cancel 1"
    )
    assert str(Told("50 back off")) == "50 back off"
