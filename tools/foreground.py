"""Run a command as the terminal's foreground job: `foreground.py COMMAND [ARG ...]`.

`make demo` needs it. A terminal sends Ctrl-C to every process of its foreground group: to the
demo, and to make as well. make then waits for the demo and ends itself by that signal, so that a
demo which drained and exited with 0 looks like one that was broken off (130); and a second Ctrl-C
ends make at once, and with it the demo's claim to the terminal, while the demo still cleans up.

So the command gets a process group of its own and, as a shell would do it, the terminal. At its
end the terminal goes back, and the exit code is the command's. An exit code of 130 is passed on as
the signal that it stands for, to make too, because make turns every failure of a recipe into 2.

Without a terminal, or in the background, there is nothing to hand over: the command replaces this
process. make then ends as make does: by the signal if it got one, with 2 if the command failed.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def foreground_terminal() -> int | None:
    """The controlling terminal, if this process group is the one that it listens to."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.tcgetpgrp(terminal) == os.getpgrp():
        return terminal
    os.close(terminal)
    return None


def run(command: list[str], terminal: int) -> int:
    """Run the command as a foreground job, and return its exit code as a shell tells it."""

    def take_terminal() -> None:  # in the child, before it becomes the command
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    # A group that is not in the foreground is stopped when it moves the terminal, unless it
    # ignores the signal that says so.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # A signal that comes before it can be passed on waits until it can.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child = subprocess.Popen(command, process_group=0, preexec_fn=take_terminal)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        try:
            os.kill(child.pid, signum)
        except ProcessLookupError:  # it has ended, and so shall we
            pass

    for signum in PASSED_ON:
        signal.signal(signum, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if os.tcgetpgrp(terminal) == child.pid:
            os.tcsetpgrp(terminal, os.getpgrp())
        if not os.WIFSTOPPED(status):
            break
        # Ctrl-Z: stop as well, and with us make, so that the user gets the shell back.
        os.killpg(0, signal.SIGTSTP)
        if os.tcgetpgrp(terminal) == os.getpgrp():
            os.tcsetpgrp(terminal, child.pid)
        os.killpg(child.pid, signal.SIGCONT)

    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(command: list[str]) -> int:
    terminal = foreground_terminal()
    if terminal is None:
        os.execvp(command[0], command)
    code = run(command, terminal)
    if code == INTERRUPTED:
        os.kill(os.getppid(), signal.SIGINT)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
