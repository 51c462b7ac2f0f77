"""Prints 11 MB before anything else runs."""

import sys

sys.stdout.write("x" * (11 << 20))
sys.stdout.flush()
