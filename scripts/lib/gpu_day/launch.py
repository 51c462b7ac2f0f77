"""`envgen` of this checkout, typed in any folder: none of that folder's Python is run, as `python
-m` would.
"""

import runpy
import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[3])]
runpy.run_module("envgen", run_name="__main__", alter_sys=True)
