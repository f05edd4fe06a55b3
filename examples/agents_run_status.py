"""The status of a run as an API shows it: it changes as the table says, or not at all."""

import trio

from trio_lanes.agents import IllegalTransitionError, RunStatus, check_transition


class StoredRun:
    """What a database knows of a run."""

    def __init__(self) -> None:
        self.status = RunStatus.QUEUED

    def become(self, status: RunStatus) -> None:
        check_transition(self.status, status)
        self.status = status


async def main() -> None:
    run = StoredRun()
    run.become(RunStatus.IN_PROGRESS)
    run.become(RunStatus.REQUIRES_ACTION)
    run.become(RunStatus.CANCELLING)
    try:
        run.become(RunStatus.IN_PROGRESS)
    except IllegalTransitionError as error:
        print(error)
    print(run.status)


if __name__ == "__main__":
    trio.run(main)
