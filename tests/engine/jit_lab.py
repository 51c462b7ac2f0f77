"""Containers with the real FlashInfer 0.5.3 and 0.7.2.post1 and the real nvcc, and caches that they compiled."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from projects import BASE, docker

from envgen.__main__ import main
from envgen.engine.client import Engine

ROOT = Path(__file__).parents[2]
LAB = Path(__file__).parent / "test_cache_lab"
CACHE = "/root/.cache/flashinfer"
# FlashInfer, what it imports, and CUDA's compiler and headers as wheels.
WHEELS = (
    "flashinfer_python==0.5.3", "flashinfer_python==0.7.2.post1", "apache_tvm_ffi==0.1.12",
    "nvidia_cuda_nvcc==13.0.88", "nvidia_cuda_runtime==13.0.96", "nvidia_cuda_cccl==13.0.85",
    "nvidia_cuda_crt==13.0.88", "nvidia_nvvm==13.0.88",
    "tqdm==4.67.1", "requests==2.32.5", "einops==0.8.1", "click==8.3.0", "packaging==25.0", "tabulate==0.9.0",
    "nvidia_ml_py==13.580.82", "urllib3==2.5.0", "certifi==2025.10.5", "idna==3.11", "charset_normalizer==3.4.4",
)  # fmt: skip
PROJECT = """\
version: 1
name: {name}
default_profile: dev
profiles:
  dev:
    mode: development
    image: {image}
    base: {{image: "{base}"}}
    cuda: {{arch_list: "12.1a"}}
    gpu: none
    build: {{max_jobs: 2}}
    caches: {{flashinfer: {{path: {cache}, namespace: false}}}}
    sources:
      flashinfer:
        origin: {{checkout: checkout}}
        package: flashinfer
        distribution: flashinfer-python
        mount: /workspace/flashinfer
    services:
      dev: {{command: [sleep, infinity]}}
"""
SITE = "/venv/wheel/lib/python3.11/site-packages/flashinfer"


@pytest.fixture(scope="session")
def jit_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built once; its tag is a digest of what it is made of."""
    parts = [path.read_bytes() for path in sorted(LAB.iterdir()) if path.is_file()]
    base = engine.image(BASE)
    assert base is not None
    digest = hashlib.sha256(b"\0".join([*parts, repr(WHEELS).encode(), base.id.encode()])).hexdigest()[:12]
    tag = f"envgen-test-jit-lab:{digest}"
    if engine.image(tag) is not None:
        return tag
    context = tmp_path_factory.mktemp("jit-lab")
    shutil.copytree(LAB, context, dirs_exist_ok=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "envgen" / "jit-lab"
    machine: tuple[str, ...] = ()
    platform = f"linux/{base.architecture}"
    if base.architecture == "arm64":  # this tier on an engine whose base is for ARM, under an emulator or not
        cache, machine = cache / "aarch64", ("--machine", "aarch64")
    for pins in (WHEELS[:1], WHEELS[1:]):  # pip refuses two versions at once
        subprocess.run([ROOT / "scripts/fetch-wheel", *machine, *pins, cache], check=True)
    shutil.copytree(cache, context / "wheels", ignore=shutil.ignore_patterns(".*", "aarch64"))
    fetched = context / "fetched"
    subprocess.run([ROOT / "scripts/fetch-source", "flashinfer-python==0.5.3", fetched], check=True)
    shutil.copytree(fetched, context / "flashinfer", ignore=shutil.ignore_patterns(".git", "tests"))
    shutil.rmtree(fetched)
    options = ("--platform", platform, "--network", "none", "--build-arg", f"BASE={BASE}", "-t", tag)
    docker("build", "-q", *options, str(context), timeout=3600)
    return tag


class Lab:
    """One container of the image with Compose's labels, and the cache as the image compiled it."""

    def __init__(self, folder: Path, image: str) -> None:
        self.name = f"envgenjit{uuid.uuid4().hex[:8]}"
        self.folder, self.image = folder, image
        text = PROJECT.format(name=self.name, image=image, base=BASE, cache=CACHE)
        (folder / "envgen.yaml").write_text(text)
        (folder / "checkout").mkdir()
        self.container = ""
        self.volume = f"{self.name}-dev-cache-flashinfer"
        self.prebuilt = True  # whether an empty cache gets what the image compiled

    def start(self, python: str = "wheel", *options: str, volume: str = "", mode: str = "rw") -> None:
        """``python``: which of the image's environments is the service's own."""
        self.stop()
        label = "com.docker.compose"
        path = (
            f"PATH=/venv/{python}/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        )
        self.container = docker(
            "run", "-d", "--init", "--network", "none", "--label", f"{label}.project={self.name}-dev",
            "--label", f"{label}.service=dev", "-v", f"{volume or self.volume}:{CACHE}:{mode}", "-e", path,
            *options, self.image,
        )  # fmt: skip
        if self.prebuilt:
            self.sh(f"test -d {CACHE}/0.5.3 || cp -a /prebuilt/. {CACHE}/")

    def sh(self, text: str, check: bool = True, timeout: float = 900) -> str:
        return docker("exec", self.container, "sh", "-c", text, check=check, timeout=timeout)

    def stamps(self, module: str, version: str = "0.5.3") -> dict[str, str]:
        lines = self.sh(f"cd {CACHE}/{version}/121a/cached_ops && stat -c '%n %Y.%y %i' {module}/*", check=False)
        return dict(line.split(" ", 1) for line in lines.splitlines())

    def times(self, module: str, version: str = "0.5.3") -> dict[str, str]:
        """Of each of its files, to the nanosecond. Equal times before and after: nothing was compiled."""
        return {name: words.rpartition(" ")[0] for name, words in self.stamps(module, version).items()}

    def build(self, *modules: str) -> None:
        """As a first use would: FlashInfer's own build of these modules, in a fresh process."""
        self.sh(f"python3 /build.py {' '.join(modules)}")

    def stop(self) -> None:
        if self.container:
            docker("rm", "-f", self.container, check=False)

    def remove(self) -> None:
        self.stop()
        docker("volume", "rm", "-f", self.volume, check=False)


@pytest.fixture
def jit_lab(jit_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, jit_image)
    monkeypatch.chdir(tmp_path)
    try:
        yield lab
    finally:
        lab.remove()


class Envgen:
    """Runs commands in this process and reads what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        found = main(["cache", *words])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return out + err

    def json(self, *words: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        assert main(["cache", *words, "--json"]) == code
        return json.loads(self.capsys.readouterr().out)

    def states(self) -> dict[str, str]:
        return {f"{m['version']} {m['name']}": m["state"] + "?" * m["guess"] for m in self.json("list")["modules"]}


@pytest.fixture
def cache_command(capsys: pytest.CaptureFixture[str]) -> Envgen:
    return Envgen(capsys)
