"""The real code of vLLM's releases, for tests that ask it: its Python, and processes that have imported it.

The environments are made by scripts/predict-env: vLLM's released Python code with PyTorch's CPU build.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from warm_python import warm_python

from envgen.app.predict import PROGRAM
from envgen.inside import run
from envgen.profile.load import load_project
from envgen.profile.model import Profile

TOP = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envgen" / "predict"
PROJECTS = tuple(
    load_project(file=folder / "envgen.yaml", environ={}, local=False).project
    for folder in (TOP, TOP / "examples" / "from-source")
)
# Shipped profile -> the file that it is in.
FILES = {name: project.file for project in PROJECTS for name in project.profiles}
SHIPPED_PROFILES = {name: profile for project in PROJECTS for name, profile in project.profiles.items()}


def _release(profile: Profile) -> str:
    """The release that a shipped profile builds, takes as a wheel, or has as a checkout; "" for a commit."""
    origin, binaries = profile.sources["vllm"].origin, profile.sources["vllm"].binaries
    if origin.kind == "checkout" and binaries is None:
        return _release(SHIPPED_PROFILES[profile.name.removesuffix("_dev")])
    pin = binaries or origin.wheel
    found = pin.version if pin else (origin.ref or "").removeprefix("v")
    return found if re.match(r"\d+\.\d", found) else ""


# Shipped profile -> its release of vLLM. A profile that is added or changed is asked without a word here.
PROFILES = {name: _release(profile) for name, profile in SHIPPED_PROFILES.items()}
# A commit is on no package index: `envgen predict` asks it in the image that a user builds.
NOT_HERE = {name for name, version in PROFILES.items() if not version}
RELEASES = tuple(dict.fromkeys(version for version in PROFILES.values() if version))
# The servers of those projects, by profile and variant, but for those that are not here.
SHIPPED = [
    (name, variant, service)
    for name, profile in SHIPPED_PROFILES.items()
    if name not in NOT_HERE
    for service, described in profile.services.items()
    if described.is_vllm_server
    for variant in ("", *profile.variants)
]
# Libraries of other projects that the releases import, and that take the longest.
LIBRARIES = (
    "torch", "torch._inductor.lowering", "torch._inductor.compile_fx", "torch._inductor.standalone_compile",
    "torch._dynamo.repro.after_dynamo", "torch.utils.cpp_extension", "transformers",
    "transformers.models.auto.image_processing_auto", "transformers.models.auto.modeling_auto", "openai.types.chat",
    "openai.types.responses", "fastapi", "aiohttp", "requests", "compressed_tensors.quantization", "xgrammar",
)  # fmt: skip
Warm = Callable[..., Path]
Answers = dict[str, dict[str, Any]]
Ask = Callable[[str, Mapping[str, Mapping[str, Any]]], Answers]


@functools.cache
def environment(version: str) -> Path:
    """The Python of a release, made where it is not there."""
    folder = CACHE / version
    subprocess.run([TOP / "scripts" / "predict-env", version, folder], check=True)
    return folder / "bin" / "python"


def with_path(python: Path, tree: Path, folder: Path) -> Path:
    """A Python that finds modules in ``tree`` first."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tree} exec {python} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables, so that it doesn't matter what models, cubins and network this machine has."""
    home = str(tmp_path_factory.mktemp("home"))
    return {"HOME": home, "HF_HOME": home, "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}


@pytest.fixture(scope="session")
def warm(nowhere: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A release's Python as a program that costs less to start: the libraries of other projects are imported."""
    with ExitStack() as stack:

        @functools.cache
        def made(python: Path) -> Path:
            env = {**os.environ, **nowhere, "HF_HUB_OFFLINE": "1"}  # envgen's program sets it before it imports any
            return stack.enter_context(warm_python(python, LIBRARIES, env, tmp_path_factory.mktemp("warm")))

        yield made


@pytest.fixture(scope="session")
def hot(nowhere: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A release's Python as a program that has imported vLLM, too, where a GB10 is played, or another GPU."""
    with ExitStack() as stack:

        @functools.cache
        def made(python: Path, gpu: str = "12.1") -> Path:
            env, modules = (
                {**os.environ, **nowhere, "ENVGEN_TEST_GPU": gpu},
                [str(Path(__file__).with_name("import_vllm.py"))],
            )
            return stack.enter_context(warm_python(python, modules, env, tmp_path_factory.mktemp("hot")))

        yield made


@pytest.fixture(scope="session")
def ask_models(hot: Warm, nowhere: dict[str, str]) -> Ask:
    """What a release answers to requests, each with a name."""

    def ask(version: str, requests: Mapping[str, Mapping[str, Any]]) -> Answers:
        found = Answers()
        for name, request in requests.items():
            env = {**nowhere, "VLLM_HAS_FLASHINFER_CUBIN": "1", **request.get("env", {})}
            python = hot(environment(version), ".".join(map(str, request["gpu"]["capability"])))
            answer = run.ask(run.on_host(env), str(python), PROGRAM, request, timeout=300)
            assert isinstance(answer, dict), answer
            found[name] = answer
        return found

    return ask
