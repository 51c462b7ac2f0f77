"""The steps of scripts/compile-proof. Standard library only; FlashInfer compiles in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY, WORK, PYTHON = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, str(REPOSITORY))

from proof import Proof, ask_agent  # noqa: E402

ROOT = WORK / "home/.cache/flashinfer"
# The module that is judged, and the one that must stay as it is. Another one than the mission's makes a quick trial.
MODULE, BESIDE = os.environ.get("ENVGEN_PROOF_MODULE", "fused_moe_120"), "page"
SOURCES = {
    "fused_moe_120": "fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_sm100_binding.cu",
    "norm": "norm.cu",
}
BUILD = """
import sys, time
from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm120_module
from flashinfer.jit.norm import gen_norm_module
from flashinfer.jit.page import gen_page_module
generators = {"fused_moe_120": gen_cutlass_fused_moe_sm120_module, "page": gen_page_module, "norm": gen_norm_module}
spec = generators[sys.argv[1]]()
start = time.time()
spec.build(verbose=False)
print("SECONDS %.1f" % (time.time() - start))
"""
PROOF = Proof()
step = PROOF.step


def build(name: str) -> dict[str, Any]:
    """Let FlashInfer build a module in a fresh process."""
    done = subprocess.run([PYTHON, "-c", BUILD, name], cwd=WORK, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("SECONDS "):
            return {"seconds": float(line[8:])}
    return {"failed": done.returncode, "error": (done.stdout + done.stderr)[-3000:]}


def agent(operation: str, **request: object) -> dict[str, Any]:
    """envgen's agent on this cache."""
    return ask_agent(PYTHON, ROOT, operation, **request)


def modules() -> dict[str, Any]:
    """Every module's row as `envgen cache list` has it."""
    found = agent("list")
    return {module["name"]: module for module in found["result"]["modules"]} if found["ok"] else {"error": found}


def objects(name: str) -> dict[str, Any]:
    """Times and inodes of a module's objects."""
    found = {}
    for path in sorted(ROOT.glob("*/*/cached_ops/" + name + "/**/*.o")):
        status = path.stat()
        found[path.name] = [status.st_mtime_ns, status.st_ino]
    return found


def main() -> int:
    """All steps, then the document."""
    nvcc = (
        subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()
    )
    beside, built = build(BESIDE), build(MODULE)
    size = sum(path.stat().st_size for path in ROOT.glob("*/*/cached_ops/" + MODULE + "/*.so"))
    step(f"FlashInfer compiles {MODULE} for 12.1a", "seconds" in built and "seconds" in beside,
         nvcc=nvcc[-1:], jobs=os.environ["MAX_JOBS"], cores=os.cpu_count(), objects=len(objects(MODULE)),
         library_bytes=size, beside=beside, **built)  # fmt: skip
    if "seconds" in built:
        judge()
    return PROOF.end()


def judge() -> None:
    """list, cuobjdump, why; one edited source; clear."""
    recorded = agent("baseline", patterns=[MODULE, BESIDE])
    good = recorded["ok"] and all(module["recorded"] for module in recorded["result"]["modules"])
    step("the baseline is recorded", good, seconds=recorded["seconds"])
    rows = modules()
    states = {name: row.get("state") for name, row in rows.items()}
    shown = {name: {key: row.get(key) for key in ("arch", "state", "objects", "size")} for name, row in rows.items()}
    step("list: both are fresh", states == {MODULE: "fresh", BESIDE: "fresh"}, rows=shown)
    library = next(ROOT.glob("*/*/cached_ops/" + MODULE + "/*.so"))
    held = subprocess.run(["cuobjdump", "-lelf", str(library)], capture_output=True, text=True, check=False).stdout
    step("cuobjdump: the library holds code for sm_121a", "sm_121a" in held, answer=held[:800])

    before, other = objects(MODULE), objects(BESIDE)
    source = WORK / "site/flashinfer/data/csrc" / SOURCES[MODULE]
    source.write_text(source.read_text() + "\n// edited by the proof\n")
    state = modules().get(MODULE, {}).get("state")
    why = agent("list", thorough=True, patterns=[MODULE])
    named = json.dumps(why.get("result", why))
    step("one source is edited: stale, and why names it", state == "stale" and source.name in named, state=state,
         source=source.name, seconds=why["seconds"])  # fmt: skip
    again = build(MODULE)
    changed = sorted(name for name, stamp in objects(MODULE).items() if before.get(name) != stamp)
    step(
        "FlashInfer compiles that one object again", len(changed) == 1 and "seconds" in again, changed=changed, **again
    )

    cleared = agent("clear", patterns=[MODULE], all=False, dry_run=False)
    gone = [module["name"] for module in cleared["result"]["modules"]] if cleared["ok"] else []
    step(f"clear {MODULE} takes it alone", gone == [MODULE] and not objects(MODULE) and objects(BESIDE) == other,
         seconds=cleared["seconds"], left=sorted(modules()))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
