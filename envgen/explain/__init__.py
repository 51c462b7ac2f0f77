"""Why did it fail? Rules over build, JIT and serve logs: cause, the line that proves it, cure, where to read on.

The rules are data (``rules/*.yaml``), each with an excerpt of a real log. This package imports nothing but ``errors``.
"""

from envgen.explain.match import Cause, Explanation, cause_of, classify, log_lines

__all__ = ["Cause", "Explanation", "cause_of", "classify", "log_lines"]
