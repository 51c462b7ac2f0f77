"""Python never gets to the first line."""

import time

time.sleep(1000)
