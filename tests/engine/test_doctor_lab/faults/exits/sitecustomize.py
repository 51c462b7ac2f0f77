"""An import hook that ends the program."""

import sys


class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "flashinfer":
            sys.exit(3)
        return


sys.meta_path.insert(0, Hook())
