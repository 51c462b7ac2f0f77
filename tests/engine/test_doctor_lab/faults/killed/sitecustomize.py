"""Killed before the first line of any program, as the kernel does when memory is short."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
