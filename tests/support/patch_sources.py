"""Real sources for the tests of patches: from the package index, kept in envgen's cache between runs."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from projects import Project

from envgen.cli.build.build import command as build_command
from envgen.engine.git import git
from envgen.files import cache_dir
from envgen.lock.index import PackageIndex
from envgen.patches.dry_run import File, SdistTree, put
from envgen.patches.series import load_series

TOP = Path(__file__).parents[2]
# These projects have no lock: what they build is pinned in the test.
BUILD = ("build", *(["--unlocked"] if any("--unlocked" in option.opts for option in build_command.params) else []))
DISTRIBUTIONS = {"vllm": "vllm", "flashinfer": "flashinfer-python"}


@functools.cache
def tree(source: str, version: str) -> SdistTree:
    """The bare source of a release. The first run fetches it (5 to 35 MB)."""
    name = DISTRIBUTIONS[source]
    return SdistTree(PackageIndex().fetch(name, version), f"{source} {version}", version)


@functools.cache
def files(source: str, version: str) -> dict[str, File]:
    """The files of a release that the shipped patches touch."""
    names = {name for patch in load_series(TOP, source).patches for name in patch.touches}
    return tree(source, version).read(names)


def checkout(folder: Path, source: str, version: str) -> Path:
    """A git checkout with those files, tagged as the release."""
    folder.mkdir(parents=True)
    put(folder, files(source, version))
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", version], ["tag", f"v{version}"]):
        git(words, cwd=folder)
    return folder


def project(
    root: Path, vllm: str = "pypi: vllm==0.14.0", flashinfer: str = "pypi: flashinfer-python==0.5.3"
) -> Project:
    """A production project with the shipped patches, which the test may change.

    What earlier runs of the tests tried is forgotten: a series that passed once is not tried again.
    """
    shutil.rmtree(cache_dir() / "tried-patches", ignore_errors=True)
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
        origin: {{{flashinfer}}}
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
