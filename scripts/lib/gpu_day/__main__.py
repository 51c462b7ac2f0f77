"""Run as a folder by scripts/gpu-day."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Of what may be imported the first place is this package's, not the folder in which somebody types
# the command.
sys.path[:1] = [str(HERE.parent), str(HERE.parents[2])]

try:
    import docker.errors  # noqa: F401  # `up` needs it; `import docker` finds this clone's folder, too
    import re2  # noqa: F401  # only a log needs it, in the middle of the day

    from gpu_day.main import main
except ModuleNotFoundError as error:
    sys.exit(
        f"gpu-day: {sys.executable} has no {error.name}, which envgen needs: run `pip install -e .` in this clone, "
        "or name another Python in GPU_DAY_PYTHON"
    )

sys.exit(main(sys.argv[1:]))
