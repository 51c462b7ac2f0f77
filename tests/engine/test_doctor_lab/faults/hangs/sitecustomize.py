"""An import hook that never answers for flashinfer, and swallows what would wake it."""

import contextlib
import sys
import time


class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "flashinfer":
            print("hook: now sleeping")
            while True:
                with contextlib.suppress(Exception):
                    time.sleep(1000)


sys.meta_path.insert(0, Hook())
