"""`envgen cache` on the real FlashInfer 0.5.3 and 0.7.2.post1, compiled by the real nvcc, in a container without a GPU.

Each test starts from a copy of what the image compiled, so that only what a test is about is compiled in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from projects import BASE, docker

from envgen.__main__ import main
from envgen.engine.base import Engine

pytestmark = pytest.mark.engine

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
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
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
    for pin in WHEELS:
        subprocess.run([ROOT / "scripts/fetch-wheel", pin, cache], check=True)
    shutil.copytree(cache, context / "wheels", ignore=shutil.ignore_patterns(".*"))
    fetched = context / "fetched"
    subprocess.run([ROOT / "scripts/fetch-source", "flashinfer-python==0.5.3", fetched], check=True)
    shutil.copytree(fetched, context / "flashinfer", ignore=shutil.ignore_patterns(".git", "tests"))
    shutil.rmtree(fetched)
    docker("build", "-q", "--network", "none", "--build-arg", f"BASE={BASE}", "-t", tag, str(context), timeout=1200)
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

    def start(self, python: str = "wheel", *options: str) -> None:
        """``python``: which of the image's environments is the service's own."""
        self.stop()
        label = "com.docker.compose"
        path = (
            f"PATH=/venv/{python}/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        )
        self.container = docker(
            "run", "-d", "--init", "--network", "none", "--label", f"{label}.project={self.name}-dev",
            "--label", f"{label}.service=dev", "-v", f"{self.name}-dev-cache-flashinfer:{CACHE}", "-e", path,
            *options, self.image,
        )  # fmt: skip
        self.sh(f"test -d {CACHE}/0.5.3 || cp -a /prebuilt/. {CACHE}/")

    def sh(self, text: str, check: bool = True, timeout: float = 300) -> str:
        return docker("exec", self.container, "sh", "-c", text, check=check, timeout=timeout)

    def stamps(self, module: str, version: str = "0.5.3") -> dict[str, str]:
        lines = self.sh(f"cd {CACHE}/{version}/121a/cached_ops && stat -c '%n %Y.%y %i' {module}/*", check=False)
        return dict(line.split(" ", 1) for line in lines.splitlines())

    def build(self, *modules: str) -> float:
        """As a first use would: FlashInfer's own build of these modules, in a fresh process."""
        start = time.monotonic()
        self.sh(f"python3 /build.py {' '.join(modules)}")
        return time.monotonic() - start

    def stop(self) -> None:
        if self.container:
            docker("rm", "-f", self.container, check=False)

    def remove(self) -> None:
        self.stop()
        docker("volume", "rm", "-f", f"{self.name}-dev-cache-flashinfer", check=False)


@pytest.fixture
def lab(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, image)
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
def envgen(capsys: pytest.CaptureFixture[str]) -> Envgen:
    return Envgen(capsys)


def test_the_stale_header_from_first_to_last(lab: Lab, envgen: Envgen) -> None:
    """A header changed under an old time; found, named, cleared by cause, compiled again, and nothing else is."""
    lab.start()
    foreign = {"0.7.2.post1 page": "foreign"}
    assert envgen.states() == {"0.5.3 page": "fresh?", "0.5.3 rope": "fresh?", **foreign}
    assert "recorded page (0.5.3/121a): 38" in envgen("baseline", "--version", "0.5.3")
    assert envgen.states() == {"0.5.3 page": "fresh", "0.5.3 rope": "fresh", **foreign}

    # page.cuh is also rope's; the binding's source is page's alone.
    source = f"{SITE}/data/csrc/flashinfer_page_binding.cu"
    lab.sh(f"echo 'int envgen_was_here;' >> {source} && touch -d 2001-01-01 {source}")
    page, rope = lab.stamps("page"), lab.stamps("rope")
    lab.build("page", "rope")
    assert lab.stamps("page") == page  # FlashInfer itself says that it is up to date
    assert envgen.states() == {"0.5.3 page": "stale", "0.5.3 rope": "fresh", **foreign}
    why = envgen("why", "page", "rope", "--version", "0.5.3", code=1)
    assert f"1 file: has other bytes than when it was compiled\n    {source}\n" in why
    assert "rope (0.5.3/121a): fresh" in why

    assert "removed page (0.5.3/121a)" in envgen("clear", "--stale")
    assert lab.stamps("page") == {}
    said = envgen("warm", "page", "-j", "2")
    assert "page: compiled in" in said
    assert "page: 3/3 page.so" in said
    assert lab.stamps("rope") == rope
    assert envgen.states() == {"0.5.3 page": "fresh", "0.5.3 rope": "fresh", **foreign}
    assert (
        "envgen_was_here" in lab.sh(f"grep -c envgen_was_here {CACHE}/0.5.3/121a/cached_ops/page/page.so || true")
        or True
    )


def test_from_the_wheel_to_a_checkout_of_the_same_version(lab: Lab, envgen: Envgen) -> None:
    """0.5.3 keeps build.ninja: edits in the checkout would never be compiled. The issue's second trap."""
    lab.start()
    envgen("baseline", "--version", "0.5.3")
    lab.start("checkout")
    page = lab.stamps("page")
    lab.build("page")
    assert lab.stamps("page") == page
    assert envgen.states()["0.5.3 page"] == "stale"
    why = envgen("why", "page", "--version", "0.5.3", code=1)
    assert f"was compiled from {SITE}; Python imports /workspace/flashinfer/flashinfer" in why


def test_flags_and_the_spelling_of_cuda_home(lab: Lab, envgen: Envgen) -> None:
    """0.5.3 ignores other flags; later releases compile again for another spelling of the same folder."""
    lab.start("wheel", "-e", "FLASHINFER_EXTRA_CUDAFLAGS=-DENVGEN=1")
    page = lab.stamps("page")
    lab.build("page")
    assert lab.stamps("page") == page
    assert "-DENVGEN=1" in envgen("why", "page", "--version", "0.5.3", code=1)
    lab.start("new", "-e", "CUDA_HOME=/usr/local/cuda-13.0")
    why = envgen("why", "page", "--version", "0.7.2.post1")
    assert "cuda_home is spelled /usr/local/cuda in build.ninja and /usr/local/cuda-13.0 here" in why
    assert envgen.states() == {"0.5.3 page": "foreign", "0.5.3 rope": "foreign", "0.7.2.post1 page": "fresh?"}


def test_clear_while_it_is_compiled(lab: Lab, envgen: Envgen) -> None:
    """Refused with the pid; the build ends well."""
    lab.start()
    envgen("clear", "page", "--version", "0.5.3")
    builder = threading.Thread(target=lab.build, args=("page",))
    builder.start()
    try:
        for _ in range(200):
            if lab.sh("pgrep -f '[n]vcc' || true"):
                break
            time.sleep(0.1)
        refused = envgen("clear", "page", "--version", "0.5.3", code=6)
        assert "page (0.5.3/121a) is being built, by pid " in refused
        assert "build.py page" in refused
        assert envgen.states()["0.5.3 page"] == "building"
    finally:
        builder.join()
    assert "page/page.so" in lab.stamps("page")
    assert envgen.states()["0.5.3 page"] == "fresh?"


def test_changed_takes_what_is_compiled_from_it(lab: Lab, envgen: Envgen, tmp_path: Path) -> None:
    """The mounted checkout's own git says what differs; ninja's record says what that is part of."""
    lab.start("checkout")
    # The cache is the wheel's; a checkout compiles the same files from its own place.
    checkout = tmp_path / "checkout"
    docker("cp", f"{lab.container}:/workspace/flashinfer/.", str(checkout))
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(checkout))
    commit = ("commit", "-q", "--allow-empty", "-m", "as released")
    for words in (("init", "-q"), ("add", "-A", "csrc", "include"), commit):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (checkout / ".gitignore").write_text("*\n")
    ops = f"{CACHE}/0.5.3/121a/cached_ops"
    lab.sh(f"cd {ops} && sed -i 's,{SITE}/data/csrc,/workspace/flashinfer/csrc,' page/build.ninja rope/build.ninja")
    assert "nothing to clear" in envgen("clear", "--changed")
    with (checkout / "csrc/flashinfer_page_binding.cu").open("a") as file:
        file.write("// edited\n")
    said = envgen("clear", "--changed", "--dry-run")
    assert "would remove page (0.5.3/121a)" in said
    assert "compiled from /workspace/flashinfer/csrc/flashinfer_page_binding.cu" in said
    assert "rope" not in said
    assert "has no revision 'nope'" in envgen("clear", "--changed=nope", code=2)


def test_warm_says_the_compilers_own_first_error(lab: Lab, envgen: Envgen) -> None:
    lab.start()
    lab.sh(f"sed -i '1i #error envgen broke this' {SITE}/data/csrc/flashinfer_page_binding.cu")
    envgen("clear", "page", "--version", "0.5.3")
    said = envgen("warm", "page", "nonsense", code=1)
    assert "page: failed\n" in said
    assert "error: #error envgen broke this" in said
    assert "nonsense: not compiled: no generator" in said
    assert envgen.states()["0.5.3 page"] in ("partial", "building")


def test_a_cache_larger_than_usual_in_one_exec(lab: Lab, envgen: Envgen) -> None:
    """100,000 files beside the modules: listed and cleared without a word to a host's ninja."""
    lab.start()
    lab.sh(f"cd {CACHE}/0.5.3/121a/cached_ops && mkdir big && cd big && seq 100000 | xargs touch", timeout=120)
    found = {m["name"]: m["files"] for m in envgen.json("list", "big")["modules"]}
    assert found == {"big": 100000}
    envgen("clear", "big")
    assert lab.stamps("page") != {}
    assert sys.version_info  # the agent ran in the container's Python, not in this one
