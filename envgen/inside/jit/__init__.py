"""What runs inside a container: the standard library only, Python 3.8 and later, one JSON document, never a traceback.

``envgen.jitcache.bundle`` joins these files into one text for the container's Python; envgen is not installed there.
They import each other by their full names, which that text sets up, and nothing else of envgen. ``typing``,
``dataclasses``, ``pathlib`` and ``shutil`` are left out on purpose: importing them costs more than the work itself.
"""
