"""The steps of scripts/gpu-proof. Standard library only; the kernels run in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY, WORK, PYTHON = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
# Without the checkout on the path of the kernels' processes: only this one uses envgen.
sys.path.insert(0, str(REPOSITORY))

from proof import Proof, ask_agent  # noqa: E402

ROOT = WORK / "home/.cache/flashinfer"
MODULES = ("norm", "silu_and_mul")
# Runs both kernels and compares them with torch. A changed kernel shows in `same`.
KERNELS = """
import json, sys, time
import torch
import flashinfer
torch.manual_seed(0)
answer = {"flashinfer": flashinfer.__version__, "from": flashinfer.__file__}
x = torch.randn(64, 1024, device="cuda", dtype=torch.float16)
w = torch.randn(1024, device="cuda", dtype=torch.float16)
start = time.time()
y = flashinfer.norm.rmsnorm(x, w)
torch.cuda.synchronize()
answer["norm_seconds"] = round(time.time() - start, 2)
f = x.float()
want = (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()).half()
answer["norm_error"] = (y - want).abs().max().item()
answer["norm_same"] = bool(torch.allclose(y, want, rtol=1e-2, atol=1e-2))
start = time.time()
z = flashinfer.activation.silu_and_mul(x)
torch.cuda.synchronize()
answer["silu_seconds"] = round(time.time() - start, 2)
a, b = f.chunk(2, -1)
want = (torch.nn.functional.silu(a) * b).half()
answer["silu_same"] = bool(torch.allclose(z, want, rtol=1e-2, atol=1e-2))
answer["gpu"] = torch.cuda.get_device_name()
answer["torch"] = torch.__version__
print("ANSWER " + json.dumps(answer))
"""
PROOF = Proof()
step = PROOF.step


def kernels() -> dict[str, Any]:
    """Run both kernels in a fresh process."""
    done = subprocess.run([PYTHON, "-c", KERNELS], cwd=WORK, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER "):
            answer: dict[str, Any] = json.loads(line[7:])
            return answer
    return {"failed": done.returncode, "error": done.stderr[-3000:], "out": done.stdout[-1000:]}


def agent(operation: str, **request: object) -> dict[str, Any]:
    """envgen's agent on this cache."""
    return ask_agent(PYTHON, ROOT, operation, **request)


def states() -> dict[str, Any]:
    """Every module's state as `envgen cache list` has it."""
    found = agent("list")
    if not found["ok"]:
        return {"error": found}
    return {m["name"]: m["state"] + ("?" if m["guess"] else "") for m in found["result"]["modules"]}


def stamps(name: str) -> dict[str, Any]:
    """Times and inodes of a module's objects."""
    found = {}
    for path in ROOT.glob("*/*/cached_ops/" + name + "/*"):
        status = path.stat()
        found[path.name] = [status.st_mtime_ns, status.st_ino]
    return found


def forge(header: Path, old: str, new: str) -> None:
    """Other bytes, and a modification time from before all compilations."""
    text = header.read_text()
    assert old in text, "the header isn't what this proof knows"
    header.write_text(text.replace(old, new))
    os.utime(header, (1577836800, 1577836800))


def change(header: Path) -> tuple[str, str]:
    """An edit that any use of the kernel shows: every normalised value is doubled."""
    old = "float rms_rcp = math::rsqrt(smem[0] / float(d) + eps);"
    if old in header.read_text():
        return old, old.replace(";", " * 2.f;")
    return "#pragma once", "#pragma once\n#error envgen changed this header"


def main() -> int:
    """All steps, then the document."""
    first = kernels()
    step(
        "both kernels are compiled, run, and agree with torch",
        bool(first.get("norm_same") and first.get("silu_same")),
        **first,
    )
    again = kernels()
    quick = again.get("norm_seconds", 99) < 3 and again.get("silu_seconds", 99) < 3
    step("a second process compiles nothing", quick, **again)
    if "failed" not in first:
        explain()
    return PROOF.end()


def explain() -> None:
    """Baseline, forged edit, verdict, clear, rebuild."""
    step("without a baseline: fresh, as a guess", set(states().values()) == {"fresh?"}, states=states())
    recorded = agent("baseline", patterns=list(MODULES))
    done = recorded["ok"] and all(module["recorded"] for module in recorded["result"]["modules"])
    step("the baseline is recorded", done, answer=recorded)
    step("with it: fresh, proven", set(states().values()) == {"fresh"}, states=states())

    header = WORK / "site/flashinfer/data/include/flashinfer/norm.cuh"
    old, new = change(header)
    forge(header, old, new)
    silu, norm = stamps("silu_and_mul"), stamps("norm")
    trapped = kernels()
    unchanged = trapped.get("norm_same") is True and stamps("norm") == norm
    step("header changed under an old time: FlashInfer compiles nothing and runs the old kernel", unchanged, **trapped)
    seen = states()
    step("list: norm is stale, silu_and_mul is fresh", seen == {"norm": "stale", "silu_and_mul": "fresh"}, states=seen)
    why = agent("list", thorough=True, patterns=["norm"])
    reasons = why["result"]["modules"][0]["reasons"] if why["ok"] else []
    named = [path for reason in reasons if reason["kind"] == "bytes" for path in reason["files"]]
    step(
        "why names that header and nothing else",
        [os.path.realpath(p) for p in named] == [str(header.resolve())],
        answer=why,
    )

    cleared = agent("clear", patterns=[], all=False, dry_run=False, causes={"stale": True})
    gone = [module["name"] for module in cleared["result"]["modules"]] if cleared["ok"] else []
    step("clear --stale takes norm alone", gone == ["norm"] and not stamps("norm"), answer=cleared)
    rebuilt = kernels()
    if "#error" in new:
        shown = "envgen changed this header" in str(rebuilt.get("error", ""))
    else:
        shown = rebuilt.get("norm_same") is False
    step("norm is compiled again, with the edit", shown and stamps("norm") != norm, **rebuilt)
    step("silu_and_mul was not compiled again", stamps("silu_and_mul") == silu and rebuilt.get("silu_same", True))

    forge(header, new, old)
    agent("clear", patterns=["norm"], all=False, dry_run=False)
    last = kernels()
    step("with the edit undone and norm cleared by name, it is right again", last.get("norm_same") is True, **last)
    step("silu_and_mul still is the first build", stamps("silu_and_mul") == silu and last.get("silu_seconds", 99) < 3)


if __name__ == "__main__":
    sys.exit(main())
