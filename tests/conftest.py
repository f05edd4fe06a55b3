"""What every test shares: how its tasks are scheduled, how Hypothesis draws, when a skip is a lie.

Scheduling. In each pass Trio runs the tasks that are ready in an order drawn from a random
generator of its own, `trio._core._run._r`, so that nobody comes to rely on one. Code that does
would fail a test now and then. Here the generator is seeded before every test: a failure
comes back when the test is run again, and a test of order is run under many seeds:

    @pytest.mark.many_seeds(20)
    async def test_jobs_of_a_session_start_in_order(): ...

is twenty tests, with `CHAOS=N` N times as many; the failing seed stands in the test's name.
`--scheduler-seed N` shifts all seeds by N, to go and look for other orders. Hypothesis seeds the
same generator before each example, so a property test draws its seed instead:
`@given(st.random_module(), ...)`.

Trio offers no public way to this. Two private names are touched, here and in `simulate` of
`trio_lanes.testing`, which plays the same life again.
"""

import os
import signal
from collections.abc import Generator

import hypothesis
import pytest
import trio

from tests.support.chaos import examples

# Without this a pass only reverses the ready tasks or does not, and their first order depends on
# the addresses of objects. With it they are sorted by age, then shuffled: every order comes up, and
# comes back with its seed. (pytest-trio sets it too, where Hypothesis is installed.)
trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True

# A shell lets a command in the background ignore SIGINT. Tests send it, to themselves too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# A property test takes as long as the machine needs; nothing about that is a failure.
patient = hypothesis.settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("lanes", patient)
hypothesis.settings.register_profile("lanes-ci", patient, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("lanes-ci" if IN_CI else "lanes")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scheduler-seed", type=int, default=0, help="added to every seed of Trio's scheduler"
    )


@pytest.fixture(autouse=True)
def scheduler_seed(request: pytest.FixtureRequest) -> int:
    """The seed of Trio's scheduler in this test."""
    seed: int = getattr(request, "param", 0) + request.config.getoption("--scheduler-seed")
    trio._core._run._r.seed(seed)
    return seed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("many_seeds")
    if mark is None:
        return
    if hypothesis.is_hypothesis_test(metafunc.function):
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: Hypothesis seeds the scheduler itself; "
            "draw st.random_module() instead of marking the test with many_seeds"
        )
    (n,) = mark.args
    metafunc.parametrize(
        "scheduler_seed", range(examples(n)), indirect=True, ids=lambda seed: f"seed{seed}"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes a second chance in CI; the summary names those that took it.

    What a machine of many does to processes, terminals, sockets and a browser is not all in the
    power of a test. Whoever works on one runs it without.
    """
    for item in items:
        if IN_CI and item.get_closest_marker("real_processes"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def _fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where everything is installed, a test that was not run is a failure, not a skip."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped with CI=true: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_a_skip(report)
    return report
