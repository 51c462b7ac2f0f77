"""In the lab's containers: what a freshly started interpreter finds for a package. Started in every way by `spawn`.

Hundreds are started: each imports no more than its answer takes.
"""

import os
import sys


def main():
    """Print what this very interpreter, started in whatever way, would import."""
    import importlib.util

    name = os.environ["REFEREE_PACKAGE"]
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:
        print({"kind": "error", "error": type(error).__name__})
        return
    if spec is None:
        print({"kind": "missing"})
    elif spec.origin is None:
        print({"kind": "namespace", "portions": list(spec.submodule_search_locations)})
    else:
        kind = "module" if spec.submodule_search_locations is None else "regular"
        print({"kind": kind, "origin": spec.origin})


def spawn(cells):
    """Really start an interpreter for each (package, how, folder); answers in the same order."""
    import ast
    import subprocess

    python, script = "python3", "referee"
    ways = {
        "-c": [python, "-c", "import referee; referee.main()"],
        "-m": [python, "-m", "referee"],
        "-P": [python, "-P", "-c", "import referee; referee.main()"],
    }
    running = []
    for package, how, folder in cells:
        env = dict(os.environ, REFEREE_PACKAGE=package)
        argv = ways.get(how, [script])
        running.append(subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        if len(running) % 4 == 0:
            running[-4].wait()
    return [ast.literal_eval(process.communicate()[0].decode().splitlines()[-1]) for process in running]


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "spawn":
        import json

        print(json.dumps(spawn(json.load(sys.stdin))))
    else:
        main()
