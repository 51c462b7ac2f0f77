"""Real sources for the tests of patches: from the package index, kept in envgen's cache between runs."""

from __future__ import annotations

import functools
import runpy
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from projects import Project

from envgen.engine.git import WorkTree, git
from envgen.patches.series import load_series
from envgen.patches.source import GitTree, put
from envgen.patches.wheel import File
from envgen.profile.model import REPOSITORIES

TOP = Path(__file__).parents[2]
# These projects have no lock: what they build is pinned in the test.
BUILD = ("build", "--unlocked")
DISTRIBUTIONS = {"vllm": "vllm", "flashinfer": "flashinfer-python"}


@functools.cache
def archive(source: str, version: str) -> Path:
    """The source distribution of a release. The first run fetches it (5 to 35 MB)."""
    fetcher = runpy.run_path(str(TOP / "scripts/fetch-source"))
    found: Path = fetcher["cached_sdist"](DISTRIBUTIONS.get(source, source), version, "")[0]
    return found


def read(source: str, version: str, wanted: Callable[[str], bool]) -> dict[str, File]:
    """Files of a release."""
    found = {}
    with tarfile.open(archive(source, version), "r|gz") as tar:
        for member in tar:
            name = member.name.split("/", 1)[-1]
            if member.isfile() and wanted(name) and (data := tar.extractfile(member)):
                found[name] = File(data.read(), bool(member.mode & 0o100))
    return found


@functools.cache
def files(source: str, version: str) -> dict[str, File]:
    """The files of a release that the shipped patches touch."""
    names = {name for patch in load_series(TOP, source).patches for name in patch.touches}
    return read(source, version, names.__contains__)


_FOLDER = tempfile.TemporaryDirectory(prefix="envgen-tests.")


@functools.cache
def tree(source: str, version: str) -> GitTree:
    """A commit with those files."""
    work = WorkTree(checkout(Path(_FOLDER.name, source, version), source, version))
    return GitTree(work, work.head, source, version)


def mirrored(folder: Path, **releases: Sequence[str]) -> dict[str, str]:
    """The variables with which git fetches releases of vLLM and FlashInfer from ``folder``, as from a company's mirror.

    Each is a commit with the files that the shipped patches touch, and has the project's own tag.
    """
    config = ""
    for source, versions in releases.items():
        top = folder / source
        top.mkdir(parents=True)
        git(["init", "-q", "-b", "main"], cwd=top)
        for version in versions:
            put(top, files(source, version))
            for words in (["add", "-A"], ["commit", "-q", "--allow-empty", "-m", version], ["tag", f"v{version}"]):
                git(words, cwd=top)
        config += f'[url "file://{top}"]\n\tinsteadOf = {REPOSITORIES[DISTRIBUTIONS[source]]}\n'
    (folder / "config/git").mkdir(parents=True)
    (folder / "config/git/config").write_text(config)
    return {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_CACHE_HOME": str(folder / "cache")}


def checkout(folder: Path, source: str, version: str) -> Path:
    """A git checkout with those files, tagged as the release."""
    folder.mkdir(parents=True)
    put(folder, files(source, version))
    return committed(folder, f"v{version}")


def committed(folder: Path, tag: str) -> Path:
    """A folder made a git repository with one commit, tagged."""
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", tag], ["tag", tag]):
        git(words, cwd=folder)
    return folder


VLLM = f"git: {REPOSITORIES['vllm']}, ref: v0.14.0"


def project(root: Path, vllm: str = VLLM) -> Project:
    """A production project with the shipped patches, which the test may change."""
    shutil.copytree(TOP / "patches", root / "patches")
    (root / "envgen.yaml").write_text(f"""\
version: 1
name: envgenpatches
default_profile: prod
profiles:
  prod:
    mode: production
    base: {{image: "nvcr.io/nvidia/pytorch:25.12-py3"}}
    cuda: {{arch_list: 12.1a}}
    build: {{ccache: false, max_jobs: 2}}
    pip: {{protect: [torch]}}
    gpu: none
    sources:
      flashinfer:
        origin: {{git: {REPOSITORIES["flashinfer-python"]}, ref: v0.5.3}}
        package: flashinfer
        distribution: flashinfer-python
        mount: /workspace/flashinfer
        patches: flashinfer
        install: {{requires: ["setuptools>=77", "packaging>=24", wheel, "apache-tvm-ffi>=0.1,<0.2"]}}
      vllm:
        origin: {{{vllm}}}
        package: vllm
        distribution: vllm
        mount: /workspace/vllm
        patches: vllm
        install:
          requires: ["cmake>=3.26.1", ninja, "packaging>=24.2", "setuptools>=77.0.3,<81.0.0", "setuptools-scm>=8",
                     wheel, jinja2, "grpcio-tools>=1.76.0"]
          env: {{VLLM_TARGET_DEVICE: empty, SETUPTOOLS_SCM_PRETEND_VERSION: 0.14.0}}
    services:
      serve: {{command: [sleep, infinity]}}
""")
    return Project(root, "envgenpatches")


def tree_hash(folder: Path) -> str:
    """All that lies in a folder, git's own data left out: names, modes, bytes, links."""
    script = (
        "find . -path ./.git -prune -o -printf '%P %y %m %l\\n' | sort;"
        "find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0r sha256sum;"
        "cat .git/HEAD; git status --short"
    )
    return subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, check=True).stdout
