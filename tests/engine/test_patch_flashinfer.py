"""The patch of FlashInfer, proven by its own case: a wheel, then a checkout of the same version, then an edit.

Real FlashInfer 0.5.3, the real CUDA compiler (as wheels), real ninja; no GPU is needed to compile.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from jit_lab import SITE, Lab
from patch_sources import TOP
from projects import docker

from envgen.patches.series import load_series

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

CHECKOUT = "/workspace/flashinfer"
# Has FlashInfer build its module `page`, and prints what came of it.
BUILD = """
import json, sys, time
from pathlib import Path
import flashinfer
from flashinfer.jit.page import gen_page_module

spec = gen_page_module()
started = time.time()
spec.build(verbose=False)
library = spec.get_library_path()
answer = {
    "version": flashinfer.__version__,
    "imported": str(Path(flashinfer.__file__).parent),
    "sources": sorted({str(Path(at).parent) for at in spec.ninja_path.read_text().split() if at.endswith("page.cu")}),
    "compiled": library.stat().st_mtime > started,
    "marked": b"envgen_mark" in library.read_bytes(),
}
print(json.dumps(answer))
"""


def build(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("exec", "-i", lab.container, "python3", "-", stdin=BUILD, timeout=900))
    assert found["version"] == "0.5.3" and found["imported"] == f"{CHECKOUT}/flashinfer"
    return found


def test_an_edit_in_the_checkout_is_compiled(jit_lab: Lab) -> None:
    (patch,) = load_series(TOP, "flashinfer").patches
    jit_lab.start("checkout")  # with the cache as the wheel leaves it

    # As released: the edit does not count, and nothing says so.
    mark = 'extern \\"C\\" const char* envgen_mark() { return \\"envgen_mark\\"; }'
    jit_lab.sh(f'echo "{mark}" >>{CHECKOUT}/csrc/flashinfer_page_binding.cu')
    stale = build(jit_lab)
    assert (stale["compiled"], stale["marked"], stale["sources"]) == (False, False, [f"{SITE}/data/csrc"])

    docker("exec", "-i", "-w", CHECKOUT, jit_lab.container, "git", "apply", "-", stdin=patch.content.decode())
    fresh = build(jit_lab)
    assert (fresh["compiled"], fresh["marked"]) == (True, True)
    assert fresh["sources"] in ([f"{CHECKOUT}/csrc"], [f"{CHECKOUT}/flashinfer/data/csrc"])

    # And nothing is compiled without need.
    again = build(jit_lab)
    assert (again["compiled"], again["marked"]) == (False, True)
