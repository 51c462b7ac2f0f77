"""The entry of the program. It imports next to nothing before it can be interrupted.

Before it, while Python itself starts, Ctrl-C prints Python's own traceback, as for every Python program.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # built in; `signal` imports enum, re and functools first
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130  # ExitCode.INTERRUPTED, which is not imported yet


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code (docs/troubleshooting.md).

    SIGTERM and SIGHUP act as Ctrl-C: clean up, one line on stderr, exit code 130. Under `nohup`, SIGHUP stays ignored.
    """
    before = {}
    try:
        if sys.getfilesystemencoding() == "ascii":
            _in_utf8()
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                try:
                    before[signum] = signal.signal(signum, _terminate)
                except ValueError:  # not the main thread, which alone may do so
                    break
        from envgen.cli import program

        code = program.main(argv)
        if code == INTERRUPTED and argv is None:  # a second Ctrl-C, while Python itself ends, is the same answer
            signal.signal(signal.SIGINT, lambda _signum, _frame: os._exit(INTERRUPTED))
        return code
    except KeyboardInterrupt as error:
        os.write(2, f"envgen: {str(error) or 'interrupted'}\n".encode())
        return INTERRUPTED
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt("terminated")


def _in_utf8() -> None:
    """Start again with UTF-8: paths and labels of Docker are UTF-8, whatever the locale is.

    Python itself does so for the locales C and POSIX, unless PYTHONUTF8=0 and PYTHONCOERCECLOCALE=0 forbid it.
    """
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
