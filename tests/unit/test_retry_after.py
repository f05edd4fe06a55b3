"""`retry_after`: headers as providers send them, and objects that are no headers."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_lanes._retry_after import retry_after

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("20", 20.0),
        ("1.5", 1.5),
        (" .25 ", 0.25),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sunday, 01-Mar-26 12:01:00 GMT", 60.0),
        ("Sun Mar  1 12:00:05 2026", 5.0),
        ("Sun, 01 Mar 2026 13:00:30 +0100", 30.0),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    assert retry_after({"retry-after": value}, now=NOON) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "-5",
        "+5",
        "nan",
        "inf",
        "1e3",
        "1_000",
        "5 s",
        "٣",
        "9" * 400,
        "Sun, 99 Mar 2026 12:00:30 GMT",
        "Sun, 01 Mar 99999999999999999999 12:00:30 GMT",
        "Sun, 01 Mar 2026 12:00:30 +9999999999",
    ],
)
def test_what_cannot_be_read_counts_as_not_there(value: str) -> None:
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset-requests"):
        assert retry_after({name: value}, now=NOON) is None
    assert retry_after({"retry-after": value, "x-ratelimit-reset-tokens": "2s"}, now=NOON) == 2.0


def test_without_headers_nothing_is_said() -> None:
    assert retry_after({}) is None
    assert (
        retry_after({"content-type": "application/json", "x-ratelimit-limit-tokens": "5"}) is None
    )


def test_names_are_read_in_any_case() -> None:
    assert retry_after({"Retry-After": "3"}) == 3.0
    assert retry_after({"RETRY-AFTER-MS": "1500"}) == 1.5
    assert retry_after({"X-RateLimit-Reset-Tokens": "3s"}) == 3.0


def test_milliseconds_win_over_seconds_and_seconds_over_limits() -> None:
    headers = {"x-ratelimit-reset-tokens": "6m0s", "retry-after": "2", "retry-after-ms": "1234.5"}
    assert retry_after(headers) == 1.2345
    assert retry_after({**headers, "retry-after-ms": "?"}) == 2.0
    assert retry_after({**headers, "retry-after-ms": "?", "retry-after": "?"}) == 360.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("120ms", 0.12),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("7.66s", 7.66),
        ("250µs", 0.00025),
        ("250us", 0.00025),
        ("500ns", 5e-7),
        ("11.38", 11.38),
        ("0s", 0.0),
    ],
)
def test_the_time_until_a_limit_is_reset_is_a_duration(value: str, seconds: float) -> None:
    assert retry_after({"x-ratelimit-reset-requests": value}) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("value", ["6m 0s", "s", "1s!", "!1s", "1x", "-1s", "9" * 400 + "s"])
def test_a_value_that_is_no_duration_is_ignored(value: str) -> None:
    assert retry_after({"x-ratelimit-reset-requests": value}) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-03-01T12:00:30Z", 30.0),
        ("2026-03-01T12:00:00.5Z", 0.5),
        ("2026-03-01T13:00:02+01:00", 2.0),
        ("2026-03-01T11:00:00Z", 0.0),
    ],
)
def test_the_time_at_which_a_limit_is_reset_is_a_date(value: str, seconds: float) -> None:
    assert retry_after({"anthropic-ratelimit-input-tokens-reset": value}, now=NOON) == seconds
    assert retry_after({"x-ratelimit-reset-tokens": value}, now=NOON) == seconds


def test_the_last_of_the_limits_that_are_used_up_counts() -> None:
    openai = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert retry_after(openai) == 360.0
    assert retry_after({**openai, "x-ratelimit-remaining-tokens": "149984"}) == 1.0
    anthropic = {
        "anthropic-ratelimit-requests-remaining": "12",
        "anthropic-ratelimit-requests-reset": "2026-03-01T12:00:50Z",
        "anthropic-ratelimit-output-tokens-remaining": "0",
        "anthropic-ratelimit-output-tokens-reset": "2026-03-01T12:00:20Z",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-03-01T12:00:10Z",
    }
    assert retry_after(anthropic, now=NOON) == 20.0


def test_a_limit_that_does_not_say_what_remains_counts_as_used_up() -> None:
    headers = {
        "x-ratelimit-reset-requests": "9s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "3s",
    }
    assert retry_after(headers) == 9.0
    assert retry_after({**headers, "x-ratelimit-remaining-requests": "some"}) == 9.0


def test_a_good_answer_with_something_left_of_each_limit_asks_for_nothing() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert retry_after(headers) is None


@pytest.mark.parametrize(
    "value", ["1772366430", "1772366430123", "30", "30s", "2026-03-01T12:00:30"]
)
def test_a_time_of_a_reset_that_is_no_rfc_3339_counts_as_not_there(value: str) -> None:
    assert retry_after({"anthropic-ratelimit-unified-5h-reset": value}, now=NOON) is None


def test_an_unreadable_reset_header_does_not_hide_the_others() -> None:
    headers = {"x-ratelimit-reset-requests": "?", "x-ratelimit-reset-tokens": "4s"}
    assert retry_after(headers) == 4.0


def test_dates_are_compared_with_the_systems_clock_unless_told() -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    waited = retry_after({"anthropic-ratelimit-requests-reset": soon.isoformat()})
    assert waited is not None
    assert 3500 < waited <= 3600
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    assert retry_after({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, now=elsewhere) == 30.0


def test_headers_that_are_no_text_count_as_not_there() -> None:
    odd: Any = {b"retry-after": b"5", "retry-after": None, "retry-after-ms": 5}
    assert retry_after(odd) is None


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "Retry-After",
                "retry-after-ms",
                "x-ratelimit-reset-tokens",
                "x-ratelimit-remaining-tokens",
                "anthropic-ratelimit-requests-reset",
                "anthropic-ratelimit-requests-remaining",
            ]
        ),
        st.text()
        | st.floats().map(str)
        | st.datetimes().map(str)
        | st.datetimes(timezones=st.timezones()).map(datetime.isoformat)
        | st.from_regex(r"[A-Z][a-z]{2}, \d{1,4} (Mar|Feb|x) \d{1,7} \d\d:\d\d:\d\d [+-]?\d*\w*")
        | st.from_regex(r"(\d{1,3}(\.\d+)?(h|m|s|ms)){1,4}"),
    )
)
def test_no_header_makes_it_fail_or_say_a_time_that_is_none(headers: dict[str, str]) -> None:
    seconds = retry_after(headers, now=NOON)
    assert seconds is None or 0.0 <= seconds < math.inf
