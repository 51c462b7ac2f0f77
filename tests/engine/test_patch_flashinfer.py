"""The patch of FlashInfer, proven by its own case: a wheel, then a checkout of the same version, then an edit.

Real FlashInfer 0.5.3, the real CUDA compiler (as wheels), real ninja; no GPU is needed to compile.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patch_sources import TOP, tree
from projects import BASE, docker

from envgen.engine.base import Engine
from envgen.patches.series import load_series

LAB = Path(__file__).parent / "test_patch_lab"
IMAGE = "envgentestpatchlab"
WHEEL = "/usr/local/lib/python3.11/dist-packages/flashinfer"
CHECKOUT = "/checkout/flashinfer"


@pytest.fixture(scope="module")
def lab(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container with the wheel's cache, and a checkout of the same version beside the wheel."""
    del engine
    # Its layers stay in the build cache, so only the first run fetches the compiler and compiles.
    docker("build", "-q", "--network=host", f"--build-arg=BASE={BASE}", "-t", IMAGE, str(LAB), timeout=900)
    name = f"envgentest-patchlab-{uuid.uuid4().hex[:8]}"
    docker("run", "-d", "--name", name, "--network=none", "--entrypoint=sleep", IMAGE, "infinity")
    try:
        docker("cp", str(tree("flashinfer", "0.5.3").archive), f"{name}:/sdist.tar.gz")
        # What `pip install -e` makes: links in data/ and the version; then the checkout goes in front of the wheel.
        script = (
            f"mkdir -p {CHECKOUT} && tar xzf /sdist.tar.gz -C {CHECKOUT} --strip-components=1 && cd {CHECKOUT}"
            " && rm -rf PKG-INFO *.egg-info flashinfer/_build_meta.py && echo 0.5.3 >version.txt"
            " && python3 -m venv --system-site-packages --without-pip /venv"
            " && /venv/bin/python -m pip install -q --no-deps --no-build-isolation -e ."
        )
        docker("exec", name, "sh", "-ec", script, timeout=300)
        yield name
    finally:
        docker("rm", "-f", name, check=False)
        docker("image", "rm", "-f", IMAGE, check=False)


def build(lab: str, mark: str, *, checkout: bool) -> dict[str, Any]:
    """Let FlashInfer build the module, from the wheel or from the checkout."""
    path = ["-e", f"PYTHONPATH={CHECKOUT}"] if checkout else []
    found: dict[str, Any] = json.loads(
        docker("exec", *path, lab, "/venv/bin/python", "/lab/stale.py", mark, timeout=300)
    )
    assert found["version"] == "0.5.3"
    assert found["imported"] == (f"{CHECKOUT}/flashinfer" if checkout else WHEEL)
    return found


def edit(lab: str, mark: str) -> None:
    line = f'extern \\"C\\" const char* {mark}() {{ return \\"{mark}\\"; }}'
    docker("exec", lab, "sh", "-ec", f'echo "{line}" >>{CHECKOUT}/csrc/flashinfer_page_binding.cu')


def test_an_edit_in_the_checkout_is_compiled(lab: str) -> None:
    (patch,) = load_series(TOP, "flashinfer").patches
    wheels, checkouts = [f"{WHEEL}/data/csrc"], [f"{CHECKOUT}/csrc"]

    made = json.loads(docker("exec", lab, "cat", "/lab/wheel.json"))
    assert (made["compiled"], made["sources"]) == (True, wheels)

    # As released: the edit does not count, and nothing says so.
    edit(lab, "envgen_mark_one")
    stale = build(lab, "envgen_mark_one", checkout=True)
    assert (stale["compiled"], stale["marked"], stale["sources"]) == (False, False, wheels)

    docker("exec", "-i", "-w", CHECKOUT, lab, "git", "apply", "-", stdin=patch.content.decode())
    fresh = build(lab, "envgen_mark_one", checkout=True)
    assert (fresh["compiled"], fresh["marked"]) == (True, True)
    assert fresh["sources"] in (checkouts, [f"{CHECKOUT}/flashinfer/data/csrc"])

    # And nothing is compiled without need.
    again = build(lab, "envgen_mark_one", checkout=True)
    assert (again["compiled"], again["marked"]) == (False, True)
