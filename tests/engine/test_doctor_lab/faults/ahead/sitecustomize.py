"""The clock of this Python is an hour ahead. Imports the next sitecustomize too, so that two faults can be had."""

import runpy
import time

real = time.time
time.time = lambda: real() + 3600
runpy.run_path("/faults/prints/sitecustomize.py")
