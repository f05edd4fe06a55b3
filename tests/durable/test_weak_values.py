"""The dictionary of records and handles that are kept alive by others alone."""

from trio_lanes.durable._contract.weak_values import WeakValues


class Value:
    pass


def test_a_value_is_there_as_long_as_something_else_refers_to_it() -> None:
    values = WeakValues[Value]()
    first, second = Value(), Value()
    values.put(1, first)
    values.put(2, second)
    assert values.get(1) is first
    assert values.get(3) is None
    assert len(values) == 2
    del first
    assert values.get(1) is None
    assert len(values) == 1
    assert values.get(2) is second
    values.drop(2)
    values.drop(2)
    assert values.get(2) is None


def test_the_end_of_a_value_that_was_removed_leaves_its_successor_alone() -> None:
    values = WeakValues[Value]()
    for remove in (lambda: values.drop(1), values.clear):
        former, value = Value(), Value()
        values.put(1, former)
        remove()
        values.put(1, value)
        del former
        assert values.get(1) is value
        values.drop(1)
    assert len(values) == 0
