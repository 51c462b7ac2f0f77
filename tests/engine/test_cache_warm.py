"""`cache warm` before any service runs: real FlashInfer and nvcc in a throw-away container, behind compile-gate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jit_lab import CACHE
from projects import BASE, docker

from envgen.__main__ import main

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
        origin: {{pypi: flashinfer-python==0.5.3}}
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


@pytest.fixture
def project(jit_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    recipe = tmp_path / "Dockerfile.lab"
    recipe.write_text(IMAGE)
    docker("build", "-q", "-t", f"{NAME}:prod", "--build-arg", f"LAB={jit_image}", "-f", str(recipe), str(RUNTIME))
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    docker("volume", "rm", "-f", f"{NAME}-prod-cache-flashinfer", check=False)
    docker("image", "rm", "-f", f"{NAME}:prod", check=False)


def test_without_a_service_in_a_throw_away_container(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = docker("ps", "-aq")
    assert main(["cache", "warm", "page"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert "page: compiled in" in said.out
    assert f"compiling in a throw-away container of {NAME}:prod" in said.err
    assert docker("ps", "-aq") == before, "it is gone"
    # The gate has stood before each compiler, and has learned what it took.
    learned = docker("run", "--rm", "--network", "none", "-v", f"{NAME}-prod-cache-flashinfer:/c", "--entrypoint", "sh",
                     f"{NAME}:prod", "-c", "cd /c/.envgen/learned && cat */page/*.cuda.o")  # fmt: skip
    assert [int(line.split()[0]) > 100 for line in learned.splitlines()] == [True, True], learned
    assert main(["cache", "list", "--json"]) == 0
    (module,) = json.loads(capsys.readouterr().out)["modules"]
    assert (module["name"], module["state"]) == ("page", "fresh")


def test_without_the_image_it_tells_how_to_get_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "warm", "page", "--set", "image=envgentest-none:1"]) != 0
    assert "run `envgen build --profile prod`" in capsys.readouterr().err
