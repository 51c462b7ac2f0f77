"""How long a lock takes: `lock --check` beside `--help`, and a full resolution where each answer comes 300 ms late.

    python benchmarks/bench_lock.py [RUNS]

The slow servers are real ones on loopback (git's own HTTP backend) and a registry that answers as the specification
says. Packages are left out: they are resolved by uv in a container, whatever envgen does meanwhile.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP), str(TOP / "tests" / "engine")]

from lock_servers import failing, git_http  # noqa: E402

from envgen.engine.base import Engine  # noqa: E402
from envgen.errors import EngineError  # noqa: E402
from envgen.lock.credentials import Credentials  # noqa: E402
from envgen.lock.gitrefs import Git  # noqa: E402
from envgen.lock.model import Lock  # noqa: E402
from envgen.lock.registry import resolve_image  # noqa: E402
from envgen.lock.resolve import Tools, resolve  # noqa: E402
from envgen.lock.upgrade import Upgrade  # noqa: E402
from envgen.lock.web import Web  # noqa: E402
from envgen.profile.load import load_project  # noqa: E402

DELAY = 0.3
SOURCES = 6
HEAD = """\
version: 1
name: slow
profiles:
  prod:
    mode: production
    base: {{image: "{host}/base:1"}}
    cuda: {{arch_list: 12.1a}}
    sources:
"""
SOURCE = """\
      s{number}:
        origin: {{git: "{address}/s{number}.git", ref: main}}
        package: s{number}
        distribution: s{number}
        mount: /w/s{number}
"""
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "manifests": [{"digest": "sha256:" + "a" * 64, "platform": {"os": "linux", "architecture": "s390x"}}],
    }
).encode()


def timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def no_engine() -> Engine:
    raise EngineError("none is asked here")


def slow_servers(runs: int) -> None:
    """Wall time of all resolutions at once, against the slowest alone and their sum."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in range(SOURCES):
            bare = folder / f"s{number}.git"
            make = ["git", "-c", "user.name=b", "-c", "user.email=b@localhost", "-C", str(bare)]
            subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
            tree = subprocess.run(
                [*make, "mktree"], input="", capture_output=True, text=True, check=True
            ).stdout.strip()
            words = [*make, "commit-tree", "-m", str(number), tree]
            commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
            subprocess.run([*make, "update-ref", "refs/heads/main", commit], check=True)

        def late(_path: str, _number: int) -> tuple[int, dict[str, str], bytes]:
            time.sleep(DELAY)
            return 200, {}, MANIFEST

        with failing(late) as registry, git_http(folder, DELAY) as address:
            text = HEAD.format(host=registry.host)
            text += "".join(SOURCE.format(number=number, address=address) for number in range(SOURCES))
            (folder / "envgen.yaml").write_text(text)
            profile = load_project(file=folder / "envgen.yaml", local=False).project.profiles["prod"]
            web, credentials = Web(), Credentials()
            tools = Tools(no_engine, web, credentials, Git(), lambda _line: None)

            def everything() -> None:
                found = resolve([profile], [profile], Lock(), {}, Upgrade((), False), tools).lock
                assert len(found.git) == SOURCES, found
                assert len(found.images) == 1, found

            questions: list[Callable[[], object]] = [
                lambda s=s: Git().resolve(s.origin.git, s.origin.git_ref, s.submodules)  # type: ignore[misc]
                for s in profile.sources.values()
            ]
            questions.append(lambda: resolve_image(profile.base.image, web, credentials))
            single = [statistics.median(timed(question) for _ in range(runs)) for question in questions]
            whole = statistics.median(timed(everything) for _ in range(runs))
    print(f"full lock of {SOURCES} refs and 1 image, each answer {DELAY:g} s late: {whole:.2f} s")
    print(f"  slowest alone {max(single):.2f} s ({whole / max(single):.2f} x), one after the other {sum(single):.2f} s")


def check(runs: int) -> None:
    """`lock --check` with nothing changed, beside `--help`, in turns."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "envgen.yaml").write_bytes((TOP / "tests/golden/projects/locked/envgen.yaml").read_bytes())
        (folder / "envgen.lock").write_bytes((TOP / "tests/golden/projects/locked/envgen.lock").read_bytes())
        patches = TOP / "tests/golden/projects/locked/patches"
        if patches.is_dir():
            subprocess.run(["cp", "-r", str(patches), str(folder)], check=True)

        def run(*words: str) -> Callable[[], object]:
            argv = [sys.executable, "-m", "envgen", *words]
            environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOP), "HOME": scratch}
            return lambda: subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True)

        run("lock", "--check")()  # the first one reads everything
        pairs = [(timed(run("--help")), timed(run("lock", "--check"))) for _ in range(runs * 5)]
    helped, checked = (statistics.median(each) for each in zip(*pairs, strict=True))
    print(f"lock --check {checked * 1000:.0f} ms, --help {helped * 1000:.0f} ms: {checked / helped:.2f} x")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    check(count)
    slow_servers(count)
