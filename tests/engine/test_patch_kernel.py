"""A patch of a kernel onto a wheel: the old kernel never runs in the new image, and no other is compiled again.

Real FlashInfer 0.5.3, the real CUDA compiler (as wheels), real ninja; no GPU is needed to compile.
"""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jit_lab import CACHE, SITE, Envgen
from patch_sources import TOP
from projects import BASE, docker

from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.jitcache.service import NOTHING, JitCache
from envgen.jitcache.space import create_mount
from envgen.profile.load import load_project

pytestmark = pytest.mark.engine

NAME = "envgenkernel"
PROJECT = """\
version: 1
name: envgenkernel
default_profile: prod
profiles:
  prod:
    mode: production
    base: {{image: "{base}"}}
    cuda: {{arch_list: "12.1a"}}
    gpu: none
    caches: {{flashinfer: {{path: {cache}}}}}
    sources:
      flashinfer:
        origin: {{wheel: flashinfer-python==0.5.3}}
        package: flashinfer
        distribution: flashinfer-python{patches}
    services:
      dev: {{command: [sleep, infinity]}}
"""
BINDING = "csrc/flashinfer_page_binding.cu"
MARK = 'extern "C" const char* envgen_mark() { return "envgen_mark"; }\n'
PLAIN = "FROM {lab}\nENV PATH=/venv/wheel/bin:$PATH\n"
PATCHED = (
    "COPY apply-patches /\nCOPY patches /run/envgen/patches\nRUN mkdir -p /opt/envgen && python3 /apply-patches "
    "--installed flashinfer-python /run/envgen/patches/flashinfer/0001-mark.patch\n"
)


class Kernels:
    """A project, its images, and what their caches hold."""

    def __init__(self, root: Path, lab: str) -> None:
        self.root, self.lab = root, lab

    def image(self, patches: str, dockerfile: str) -> JitCache:
        """The profile with this image, as `envgen build` would have made it, and its cache, as `up` would."""
        (self.root / "envgen.yaml").write_text(PROJECT.format(base=BASE, cache=CACHE, patches=patches))
        (self.root / "Dockerfile").write_text(dockerfile.format(lab=self.lab))
        docker("build", "-q", "-t", f"{NAME}:prod", str(self.root))
        profile = load_project(file=self.root / "envgen.yaml", local=False).project.profiles["prod"]
        cache = JitCache(Deployment(profile, self.root))
        create_mount(cache)
        return cache

    def run(self, cache: JitCache, script: str) -> str:
        (volume,) = (mount.source for mount in cache.deployment.caches.values())
        options = ("--rm", "--network", "none", "--entrypoint", "sh", "-v", f"{volume}:{CACHE}")
        return docker("run", *options, f"{NAME}:prod", "-c", script, timeout=900)

    def libraries(self, cache: JitCache) -> dict[str, tuple[str, bool]]:
        """Module -> when it was compiled, and whether it has the mark."""
        script = f"cd {CACHE}/0.5.3/121a/cached_ops && for m in *; do [ ! -f $m/$m.so ] || "
        script += 'echo "$m $(stat -c %.9Y $m/$m.so) $(grep -c envgen_mark $m/$m.so)"; done'
        rows = [line.split() for line in self.run(cache, script).splitlines()]
        assert all(len(row) == 3 for row in rows), rows
        return {name: (when, count != "0") for name, when, count in rows}


@pytest.fixture
def kernels(engine: Engine, jit_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TOP / "docker/build/apply-patches", tmp_path / "apply-patches")
    try:
        yield Kernels(tmp_path, jit_image)
    finally:
        for volume in engine.volumes(f"{NAME}-prod-"):
            docker("volume", "rm", "-f", volume, check=False)
        docker("image", "rm", "-f", f"{NAME}:prod", check=False)


def test_the_old_kernel_never_runs_in_the_new_image(
    kernels: Kernels, cache_command: Envgen, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = kernels.image("", PLAIN)
    kernels.run(plain, f"cp -a /prebuilt/0.5.3 {CACHE}/ && python3 /build.py page vllm_comm")
    plain.baseline(NOTHING)  # as each start that ends well does
    before = kernels.libraries(plain)
    assert set(before) == {"page", "vllm_comm"} and not any(marked for _, marked in before.values())

    text = kernels.run(plain, f"cat {SITE}/data/{BINDING}")
    lines = f"{text}\n".splitlines(keepends=True)
    diff = "".join(difflib.unified_diff(lines, [*lines, MARK], f"a/{BINDING}", f"b/{BINDING}"))
    folder = kernels.root / "patches/flashinfer"
    folder.mkdir(parents=True)
    (folder / "0001-mark.patch").write_text(f"Description: a mark\n\n{diff}")
    (folder / "series").write_text("0001-mark.patch\n")
    capsys.readouterr()
    patched = kernels.image("\n        patches: flashinfer", PLAIN + PATCHED)
    said = capsys.readouterr().err
    assert "kernels: 1 module kept from" in said and "compiled again: page" in said
    assert kernels.libraries(patched) == {"vllm_comm": before["vllm_comm"]}
    kernels.run(patched, "python3 /build.py page vllm_comm")
    after = kernels.libraries(patched)
    assert after["page"][1] and after["vllm_comm"] == before["vllm_comm"]
    why = cache_command("why", "page")
    assert "1 file: is compiled with flashinfer/0001-mark.patch of this image" in why
    record = json.loads(kernels.run(patched, "cat /opt/envgen/patches.json"))
    assert list(record) == [f"{SITE}/data/{BINDING}"]

    withdrawn = kernels.image("", PLAIN)
    assert kernels.libraries(withdrawn) == before
    kernels.run(withdrawn, "python3 /build.py page vllm_comm")
    assert kernels.libraries(withdrawn) == before
