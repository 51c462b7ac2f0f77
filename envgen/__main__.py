"""The entry of the program. It imports next to nothing before it can be interrupted.

Before it, while Python itself starts, Ctrl-C prints Python's own traceback, as for every Python
program.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # built in; `signal` imports enum, re and functools first
import atexit
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130  # ExitCode.INTERRUPTED, which is not imported yet
# New objects, after which Python looks for cycles among them. By its own 700, it does so 130 times
# in a short command.
FEW = 200_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code (docs/troubleshooting.md).

    SIGTERM and SIGHUP act as Ctrl-C: clean up, one line on stderr, exit code 130. Under `nohup`,
    SIGHUP stays ignored.
    """
    before = {}
    gc.set_threshold(FEW)
    atexit.register(gc.freeze)  # nor when it ends, which takes as long again
    try:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                try:
                    before[signum] = signal.signal(signum, _terminate)
                except ValueError:  # not the main thread, which alone may do so
                    break
        from envgen.cli import program

        return program.main(argv)
    except KeyboardInterrupt as error:
        os.write(2, f"envgen: {str(error) or 'interrupted'}\n".encode())
        return INTERRUPTED
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt("terminated")


if __name__ == "__main__":
    sys.exit(main())
