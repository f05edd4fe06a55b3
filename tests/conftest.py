"""What every test shares: how its tasks are scheduled, how Hypothesis draws, which tests are run,
and when a skip is a lie.

Scheduling. In each pass Trio runs the tasks that are ready in an order drawn from a random
generator of its own, `trio._core._run._r`, so that no program comes to rely on one. Code that does
would fail a test now and then. Here the generator is seeded before every test: a failure
comes back when the test is run again, and a test of order is run under many seeds:

    @pytest.mark.many_seeds(20)
    async def test_jobs_of_a_session_start_in_order(): ...

is twenty tests, with `CHAOS=N` N times as many; the failing seed stands in the test's name.
`--scheduler-seed N` shifts all seeds by N, to go and look for other orders. Hypothesis seeds the
same generator before each example, so a property test draws its seed instead:
`@given(st.random_module(), ...)`. CI plays other seeds, too: tests/support/fresh.py.

Trio offers no public way to this. Two private names are touched, here and in `simulate` of
`trio_lanes.testing`, which plays the same life again; and a third, of its threads that are idle.
"""

import functools
import gc
import os
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import trio
from trio._core import _thread_cache

from tests.support import doors, fresh, hangs, short
from tests.support.chaos import IN_CI, THOROUGH, examples, times
from tests.support.needs import WANT, missing, need

# Without this a pass only reverses the ready tasks or does not, and their first order depends on
# the addresses of objects. With it they are sorted by age, then shuffled: every order comes up, and
# comes back with its seed. (pytest-trio sets it too, where Hypothesis is installed.)
trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True

# A shell lets a command in the background ignore SIGINT. Tests send it, to themselves too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A terminal has the size that its test gives it. Readline, which pytest imports, sets these for the
# processes that pytest starts, such as the workers of pytest-xdist.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Stories that fail show what they compared, as tests do.
pytest.register_assert_rewrite("tests.durable.conformance")

TESTS = Path(__file__).parent
MODELS = TESTS / "model"
UNMEASURED = (MODELS, TESTS / "examples", TESTS / "incidents")

# A property test takes as long as the machine needs; nothing about that is a failure.
patient = hypothesis.settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("lanes", patient)
# its seeds are those of tests/support/fresh.py
hypothesis.settings.register_profile("lanes-ci", patient, database=None, print_blob=True)
hypothesis.settings.load_profile("lanes-ci" if IN_CI else "lanes")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scheduler-seed", type=int, default=0, help="added to every seed of Trio's scheduler"
    )
    parser.addoption(
        "--short", action="store_true", help="play the part of `make test` (tests/support/short.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(hangs)
    config.pluginmanager.register(fresh)
    if config.getoption("--short"):
        config.pluginmanager.register(short)


@pytest.fixture(autouse=True)
def scheduler_seed(request: pytest.FixtureRequest) -> int:
    """The seed of Trio's scheduler in this test."""
    seed: int = getattr(request, "param", 0) + request.config.getoption("--scheduler-seed")
    trio._core._run._r.seed(seed)
    return seed


@pytest.fixture(autouse=True)
def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The door through which this test goes, "trio" or "asyncio" (tests/support/doors.py)."""
    door: str = getattr(request, "param", "trio")
    if door == "asyncio":
        doors.enter_asyncio(request.node, monkeypatch)
    return door


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    definition = metafunc.definition
    if definition.get_closest_marker("asyncio_only"):
        metafunc.parametrize("door", ["asyncio"], indirect=True)
    if definition.get_closest_marker("both_doors") and not definition.get_closest_marker(
        "trio_only"
    ):
        metafunc.parametrize("door", ["trio", "asyncio"], indirect=True)
    mark = definition.get_closest_marker("seeds")
    if mark is not None:
        seeds = fresh.seeds(metafunc.config, times(*mark.args))
        shift = metafunc.config.getoption("--scheduler-seed")
        metafunc.parametrize("seed", [seed + shift for seed in seeds.values()], ids=seeds)
    mark = definition.get_closest_marker("many_seeds")
    if mark is None:
        return
    if hypothesis.is_hypothesis_test(metafunc.function):
        raise pytest.UsageError(
            f"{definition.nodeid}: Hypothesis seeds the scheduler itself; "
            "draw st.random_module() instead of marking the test with many_seeds"
        )
    (n,) = mark.args
    seeds = fresh.seeds(metafunc.config, times(n))
    metafunc.parametrize("scheduler_seed", seeds.values(), indirect=True, ids=seeds)


def _is_not_for_asyncio(item: pytest.Item) -> bool:
    """Whether a test in asyncio, which knows no order but one, has another seed of Trio's; or is a
    case that is about Trio."""
    drawn = getattr(item, "callspec", None)
    return (
        drawn is not None
        and drawn.params.get("door") == "asyncio"
        and (bool(drawn.params.get("scheduler_seed")) or bool(item.get_closest_marker("trio_only")))
    )


def is_model(item: pytest.Item) -> bool:
    return item.path.is_relative_to(MODELS)


@functools.cache
def _is_unmeasured(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in UNMEASURED)


def measures_coverage(item: pytest.Item) -> bool:
    """Whether coverage is measured in a test, which makes it take twice as long.

    Not where a model or a program reaches a line by the way, nor where sizes are compared; and of
    several seeds with the first alone, so that no line is reached by what is fresh.
    """
    drawn = item.get_closest_marker("seeds") or item.get_closest_marker("many_seeds")
    return not (
        _is_unmeasured(item.path)
        or (drawn and "seed0" not in item.callspec.id.split("-"))  # type: ignore[attr-defined]
        or any(item.get_closest_marker(mark) for mark in ("thorough", "slow"))
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests and their order; give tests of real processes a second chance in CI.

    What a machine of many does to processes, terminals, sockets and a browser is not all in the
    power of a test. Outside of CI there is none. The summary names those that took it.
    """
    left_out = [item for item in items if item.get_closest_marker("thorough") and not THOROUGH]
    left_out += [item for item in items if _is_not_for_asyncio(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        are_left_out = set(left_out)
        items[:] = [item for item in items if item not in are_left_out]
    # Files whose tests wait come first: where workers share the tests, by the file, the others fill
    # the time. Then the models, whose files are long: no worker is to be left alone with one.
    items.sort(key=lambda item: (not item.get_closest_marker("real_processes"), not is_model(item)))
    for item in items:
        if IN_CI and item.get_closest_marker("real_processes"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if not measures_coverage(item):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let garbage collections look at nothing but what tests have made.

    All tests are a million objects, for which a whole collection takes half a second of a core.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of that of `pytest_trio`
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    if isinstance(item, pytest.Function) and item.funcargs.get("door") == "asyncio":
        doors.run_in_asyncio(item)
    yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Leave Trio's idle threads that measure no coverage to no test that measures it."""
    if item.get_closest_marker("no_cover"):
        _thread_cache.THREAD_CACHE = _thread_cache.ThreadCache()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name what is missing, of what the chosen tests need."""
    asked = missing() if not config.getoption("--short") else {*missing()} & short.NEEDED
    what = ", ".join(asked)
    return [f"not here: {what}; the tests that need it are not run"] if what else []


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


def _not_run(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Return how many tests were skipped for want of each thing."""
    reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", [])]
    return Counter(reason.rpartition(WANT)[2] for reason in reasons if WANT in reason)


@pytest.hookimpl(wrapper=True, trylast=True)  # inside the hook of pytest-cov, which compares then
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Have no bound of coverage where something was missing."""
    result = yield
    measuring = session.config.pluginmanager.get_plugin("_cov")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if measuring is not None and reporter is not None and _not_run(reporter):
        measuring.options.cov_fail_under = None
    return result


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Say what was not run."""
    if not_run := _not_run(terminalreporter):
        told = ", ".join(f"{number} tests for want of {what}" for what, number in not_run.items())
        begin = "failed" if exitstatus else "passed"
        terminalreporter.write_line(f"{begin}; not run: {told}")
