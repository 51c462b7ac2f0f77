"""`cache warm` before any service runs: real FlashInfer and nvcc in a temporary container, behind compile-gate."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from jit_lab import CACHE, Envgen
from projects import BASE, docker

from envgen.__main__ import main

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

RUNTIME = Path(__file__).parents[2] / "docker/runtime"
NAME = "envgentestwarm"
PROJECT = f"""\
version: 1
name: {NAME}
default_profile: prod
profiles:
  prod:
    mode: production
    image: {NAME}:prod
    base: {{image: "{BASE}"}}
    cuda: {{arch_list: "12.1a"}}
    gpu: none
    caches: {{flashinfer: {{path: {CACHE}, namespace: false}}}}
    sources:
      flashinfer:
        origin: {{wheel: flashinfer-python==0.5.3}}
        package: flashinfer
        distribution: flashinfer-python
        mount: /workspace/flashinfer
    services:
      serve: {{command: [sleep, infinity]}}
"""
# The image as envgen would have made it, as far as compilers are concerned.
IMAGE = """\
ARG LAB
FROM ${LAB}
ENV PATH=/venv/wheel/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin MAX_JOBS= \
    FLASHINFER_NVCC=/opt/envgen/bin/compile-gate
COPY --chmod=0755 bin/ /opt/envgen/bin/
"""


PAGE = ("flashinfer_page_binding.cuda.o", "page.cuda.o")  # its objects
VOLUME = f"{NAME}-prod-cache-flashinfer"
MODULES = "0.5.3/121a/cached_ops"


@dataclass(frozen=True)
class Warmed:
    """A project with the cache that the lab's image compiled without the gate, and `page` cleared and compiled again.

    ``others`` are the stamps of the other module before that; ``printed`` is what `cache warm` printed, without names
    and with both.
    """

    root: Path
    others: dict[str, str]
    printed: tuple[str, str]


def inside(text: str) -> str:
    """A shell on the cache, which is /c there."""
    return docker("run", "--rm", "--network", "none", "-v", f"{VOLUME}:/c", "--entrypoint", "sh", f"{NAME}:prod",
                  "-c", text)  # fmt: skip


def stamps(folder: str) -> dict[str, str]:
    """Time, to the nanosecond, and inode of each file below a folder."""
    lines = inside(f"cd /c/{folder} && find . -type f -exec stat -c '%n %y %i' {{}} +").splitlines()
    return dict(line.split(" ", 1) for line in lines)


@pytest.fixture(scope="module")
def warmed(jit_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warmed]:
    """Half a minute to two for a module: one is compiled, for all tests, which leave the cache as they found it."""
    root = tmp_path_factory.mktemp("warm")
    (root / "Dockerfile.lab").write_text(IMAGE)
    (root / "envgen.yaml").write_text(PROJECT)
    docker("build", "-q", "-t", f"{NAME}:prod", "--build-arg", f"LAB={jit_image}", "-f", str(root / "Dockerfile.lab"),
           str(RUNTIME))  # fmt: skip

    def cache(*words: str) -> str:
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = main(["cache", *words, "--file", str(root / "envgen.yaml")])
        assert code == 0, output.getvalue()
        return output.getvalue()

    try:
        inside("cp -a /prebuilt/0.5.3 /c/")
        others = stamps(f"{MODULES}/vllm_comm")
        cache("clear", "page")
        printed = cache("warm"), cache("warm", "page", "vllm_comm")
        assert docker("ps", "-aq", "--filter", f"ancestor={NAME}:prod") == "", "the temporary container is gone"
        yield Warmed(root, others, printed)
    finally:
        docker("volume", "rm", "-f", VOLUME, check=False)
        docker("image", "rm", "-f", f"{NAME}:prod", check=False)


@pytest.fixture
def envgen(warmed: Warmed, cache_command: Envgen, monkeypatch: pytest.MonkeyPatch) -> Envgen:
    monkeypatch.chdir(warmed.root)
    return cache_command


def test_without_a_service_in_a_throw_away_container(warmed: Warmed, envgen: Envgen) -> None:
    printed = warmed.printed[-1]
    assert "page: compiled in" in printed and f"compiling in a temporary container of {NAME}:prod" in printed
    # The gate has stood before each compiler, and has learned what it took.
    learned = inside("cd /c/.envgen/learned && cat */page/*.cuda.o")
    assert [int(line.split()[0]) > 100 for line in learned.splitlines()] == [True, True], learned
    assert [(one["name"], one["state"]) for one in envgen.json("list")["modules"]] == [
        ("page", "fresh"),
        ("vllm_comm", "fresh"),
    ]


def test_of_a_cleared_module_alone_the_objects_are_compiled(warmed: Warmed) -> None:
    nothing, printed = warmed.printed
    assert "nothing to compile" in nothing, "what is gone is not partial"
    assert len(warmed.others) > 2 and stamps(f"{MODULES}/vllm_comm") == warmed.others, printed
    compiled = sorted(name.split("/", 2)[2] for name in stamps(".envgen/learned"))
    assert compiled == [f"page/{name}" for name in sorted(PAGE)], printed
