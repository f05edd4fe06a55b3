"""The dictionary of records and handles that are kept alive by others alone."""

from trio_lanes.durable._tables.weak_values import FEWEST, WeakValues


class Value:
    pass


def test_a_value_is_there_as_long_as_something_else_refers_to_it() -> None:
    values = WeakValues[Value]()
    first, second = Value(), Value()
    values.put(1, first)
    values.put(2, second)
    assert values.get(1) is first
    assert values.get(3) is None
    del first
    assert values.get(1) is None
    assert values.get(2) is second
    values.drop(2)
    values.drop(2)
    assert values.get(2) is None


def test_entries_of_values_that_are_gone_do_not_pile_up() -> None:
    values = WeakValues[Value]()
    kept = [Value() for _ in range(2 * FEWEST)]
    for number, value in enumerate(kept):
        values.put(number, value)
    for number in range(len(kept), 20 * len(kept)):
        values.put(number, Value())
    assert len(values) <= 2 * len(kept) + 1
    assert [values.get(number) for number in range(len(kept))] == kept
    kept.clear()
    for number in range(20 * len(kept), 30 * FEWEST):
        values.put(number, Value())
    assert len(values) <= FEWEST
    values.clear()
    assert len(values) == 0
