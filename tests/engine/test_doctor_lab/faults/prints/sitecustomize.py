"""Prints whenever Python starts, in an encoding that is not UTF-8."""

import sys

sys.stdout.buffer.write(b"hello \xff\xfe\x80\n{not json}\n")
sys.stdout.flush()
