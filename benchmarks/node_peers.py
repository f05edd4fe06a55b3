"""The queues for Node: installed once from the lock file, measured in a fresh process each.

A peer that cannot be installed is a reason in the table, never a gap in it.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.checks import WIDTH, WrongResult, verify
from benchmarks.sample import Missing, Run, Sample
from benchmarks.workloads import IN_FLIGHT, JOBS_PER_SESSION, OUTSTANDING

FOLDER = Path(__file__).parent / "node"
DURABLE = Path(__file__).parent / "node_durable"
KEEPS = frozenset({"order", "exclusion", "limit"})


@functools.cache
def prepare(folder: Path = FOLDER) -> Missing | None:
    """Install the packages if they are not there as the lock file names them.

    Without a lock file, what ``package.json`` names is pinned, and what that needs is not: some of
    it is for one system each, and not every registry has all of them.
    """
    if shutil.which("node") is None:
        return Missing("Node is not installed")
    lock = folder / "package-lock.json"
    how = ["ci"] if lock.exists() else ["install", "--no-package-lock"]
    lock = lock if lock.exists() else folder / "package.json"
    installed = folder / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return None
    if shutil.which("npm") is None:
        return Missing("its packages are not installed, and there is no npm to do it")
    done = subprocess.run(
        ["npm", *how, "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return Missing(f"npm {how[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return None


@functools.cache
def versions() -> dict[str, str]:
    """Node's version and those of the packages; empty where there is no Node."""
    if prepare() is not None:
        return {}
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    packages = json.loads((FOLDER / "package-lock.json").read_text())["packages"]
    wanted = packages[""]["dependencies"]
    named = {name: packages[f"node_modules/{name}"]["version"] for name in wanted}
    if prepare(DURABLE) is None:
        named |= json.loads((DURABLE / "package.json").read_text())["dependencies"]
    return {"node": done.stdout.strip().removeprefix("v"), **named}


def command(run: Run) -> list[str]:
    library = run.contender.partition(".")[2]
    if run.workload in IN_FLIGHT:
        script = str(DURABLE / "bench.mjs")
        return ["node", "--expose-gc", script, library, str(run.n), str(IN_FLIGHT[run.workload])]
    alone = run.workload in ("waiting_alone", "uncontended", "priorities")
    sessions = run.n if alone else max(1, run.n // JOBS_PER_SESSION)
    numbers = [str(number) for number in (run.n, sessions, OUTSTANDING, WIDTH)]
    # The collector is only called before the clock starts, as for every other peer.
    return ["node", "--expose-gc", str(FOLDER / "bench.mjs"), library, run.workload, *numbers]


def sample(run: Run, output: str) -> Sample:
    """Check what a process answered, by the same rules as every other peer's."""
    answer = json.loads(output)
    seconds, cpu, figures = answer["seconds"], answer["cpu"], answer.get("figures", {})
    if "bytes" in answer:
        # The heap of V8 wavers, up and down; what is no more than that is nothing.
        stray = 100_000
        size = answer["bytes"] if answer["bytes"] > stray else 0
        return Sample(float(round(size / run.n)), verified=("all there",), figures=figures)
    if "told" in answer:
        if (answer["told"], answer["ran"]) != (run.n, 0):
            raise WrongResult(f"{answer['told']} of {run.n} were cancelled, {answer['ran']} ran")
        verified: tuple[str, ...] = ("all told", "none ran")
    elif "tally" in answer:
        if answer["tally"] != {"count": run.n, "total": run.n * (run.n - 1) // 2}:
            raise WrongResult(f"{answer['tally']['count']} jobs ran for {run.n} sessions")
        verified = ("sum",)
    elif "ranked" in answer:
        if answer["ranked"] != list(range(run.n - 1, -1, -1)):
            raise WrongResult("jobs did not run in the order of their priorities")
        log, results = answer["log"], answer["results"]
        verified = verify(log, results, n=run.n, sessions=1, keeps=frozenset())
        verified = (*verified, "priority")
    elif run.workload in IN_FLIGHT:
        log, results, sessions = answer["log"], answer["results"], IN_FLIGHT[run.workload]
        keeps = frozenset({"order"}) if run.contender == "node.groupmq" else frozenset[str]()
        verified = verify(log, results, n=run.n, sessions=sessions, keeps=keeps)
        figures = {"cycles_per_second": run.n / seconds}
    else:
        sessions = 1 if run.workload == "uncontended" else max(1, run.n // JOBS_PER_SESSION)
        log, results = answer["log"], answer["results"]
        verified = verify(log, results, n=run.n, sessions=sessions, keeps=KEEPS)
    return Sample(seconds / run.n * 1e6, seconds, cpu, verified, figures)
