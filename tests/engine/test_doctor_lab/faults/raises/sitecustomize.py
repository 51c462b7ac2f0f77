"""An import hook that raises."""

import sys


class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "flashinfer":
            raise RuntimeError("no such thing \x1b[31m \udcff")
        return


sys.meta_path.insert(0, Hook())
