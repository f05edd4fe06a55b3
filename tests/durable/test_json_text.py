"""The JSON text of payloads and results: the text and the errors of the standard library."""

import json
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_lanes.durable import PayloadError
from trio_lanes.durable._options import json_text


class Level(IntEnum):
    HIGH = 3


class Named(str):
    __slots__ = ()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from([Level.HIGH, Named("n")])
)
KEYS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.none() | st.booleans()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
    ),
)


@given(VALUES)
def test_a_value_has_the_text_of_the_standard_library_and_comes_back_from_it(value: Any) -> None:
    text = json_text.encode("it", value, 10**9)
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert json_text.decode(text) == json.loads(text)
    assert json_text.decode(f" {text}\n") == json.loads(text)


def contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (contains_itself(), "Circular reference"),
        (float("nan"), "not JSON compliant"),
        ({(1,): 1}, "keys must be"),
        (object(), "not JSON serializable"),
    ],
)
def test_what_is_not_json_is_refused_with_the_reason(
    value: object, why: str, in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_c:  # as in an interpreter whose standard library has no encoder in C
        monkeypatch.setattr("json.encoder.c_make_encoder", None)
        monkeypatch.setattr(json_text, "_pieces", json_text._encoder_in_c())
        assert json_text.encode("it", {"a": [1, "ä"]}, 100) == '{"a":[1,"ä"]}'
    with pytest.raises(PayloadError, match=f"it is not JSON: .*{why}"):
        json_text.encode("it", value, 100)


class Looked(dict[str, Any]):
    """A mapping that calls a function when an encoder looks at it."""

    looked: Callable[[], object]

    def items(self) -> Any:
        self.looked()
        return super().items()


def test_an_object_that_contains_itself_is_not_written_again_and_again() -> None:
    looks: list[None] = []
    value = Looked()
    value["self"] = value
    value.looked = lambda: looks.append(None)
    for _ in range(2):
        with pytest.raises(PayloadError, match="Circular reference"):
            json_text.encode("it", value, 100)
    assert len(looks) <= 4, "twice for each: in C, and for the reason"


def test_an_interrupt_while_a_value_is_encoded_is_no_refusal() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    value = Looked(a=1)
    value.looked = interrupt
    with pytest.raises(KeyboardInterrupt):
        json_text.encode("it", [value], 100)
    value.looked = lambda: None
    assert json_text.encode("it", [value], 100) == '[{"a":1}]'


def test_a_value_that_is_encoded_while_it_is_being_encoded_has_its_text() -> None:
    texts: list[str] = []

    def encode_it() -> None:
        inner.looked = lambda: None
        texts.append(json_text.encode("it", value, 100))

    inner = Looked(a=1)
    inner.looked = encode_it
    value = [inner]
    texts.append(json_text.encode("it", value, 100))
    assert texts == ['[{"a":1}]', '[{"a":1}]']


@pytest.mark.parametrize("text", ["", "1 2", "{", '{"a":1}x'])
def test_a_text_that_is_not_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"char \d+"):
        json_text.decode(text)
