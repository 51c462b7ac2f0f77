"""Runs inside the container: asks its vLLM what it would choose on a GPU that may be absent.

The answers are those of the release's own parser, configuration and selectors.
"""

from __future__ import annotations

import glob
import os
import sys
import tempfile
from typing import Any, Dict

from envgen.inside.predict.alternatives import ask_others
from envgen.inside.predict.attention import ask_attention
from envgen.inside.predict.config import configured, find_config, known_parsers, parsed, rust_frontend
from envgen.inside.predict.experts import ask_moe
from envgen.inside.predict.layers import ask_draft, ask_layers
from envgen.inside.predict.machine import driver, set_platform, unloadable
from envgen.inside.predict.release import Lines, everything_logged, forget, named, recording, release

Doc = Dict[str, Any]


def answer(request: Doc) -> Doc:
    lines = Lines()
    report: Doc = {"asked": {}, "refusals": [], "unasked": [], "stubs": [], "notes": []}
    report["python"] = sys.version.split()[0]
    with tempfile.TemporaryDirectory(prefix="envgen-predict-") as folder, recording(report, lines):
        # No download, and no write to the service's caches.
        os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CACHE_ROOT=os.path.join(folder, "cache"))
        release(report, lines)
        ask_release(request, report, lines, folder)
    report["lines"] = lines.kept
    return report


def ask_release(request: Doc, report: Doc, lines: Lines, folder: str) -> None:
    cpu = bool(glob.glob(os.path.join(os.path.dirname(report["vllm"]["file"]), "_C_AVX*.so")))
    if cpu or request["gpu"] is None:
        lines.step = "arguments"
        known_parsers(parsed(request, report), report)
        why = "a build for CPUs, which has no kernels for a GPU" if cpu else "no GPU was asked about"
        report["unasked"].append({"step": "this vLLM", "why": why})
        return
    report["uncompiled"] = bool(request.get("uncompiled"))  # build the layers without vLLM's compiled code, too
    lines.step = "platform"
    driver(report)
    unloadable(report)
    platform = set_platform(request, report, folder)
    lines.step = "arguments"
    args = parsed(request, report)
    if not rust_frontend(args, report, folder):
        known_parsers(args, report)
    find_config(args, request, report, folder)
    lines.step = "configuration"
    if not platform["real"]:  # one GPU for each worker
        sizes = [getattr(args, name, 1) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
        platform["count"] = max(int(sizes[0]) * int(sizes[1]), 1)
        forget()
    config = configured(args, report, lines)
    ask_selectors(config, report, lines)
    layers(config, report, report, lines)
    report["backends"] = ask_others(config, report, lines) + report.get("backends", [])
    if offline(lines):
        # Whether NVIDIA's cubins can be downloaded depends on where the server starts: ask for both.
        other: Doc = {"asked": {}, "refusals": [], "unasked": [], "notes": [], "kv": dict(report["kv"])}
        other.update({name: report[name] for name in ("model", "quantization")})
        os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"
        forget()
        before, lines.kept = lines.kept, []
        ask_selectors(config, other, lines)
        if other["unasked"]:
            layers(config, other, report, lines)
        for name in ("linear", "mamba", "draft"):
            if name in report["asked"]:
                other["asked"].setdefault(name, report["asked"][name])
        other["notes"], other["lines"], lines.kept = report["notes"], lines.kept, before
        report["with_cubins"] = other


def ask_selectors(config: Any, answers: Doc, lines: Lines) -> None:
    """Ask each selector, and record in ``answers`` its choice, its refusal, or why there is none."""
    for lines.step, ask in (("attention", ask_attention), ("moe", ask_moe)):
        with recording(answers, lines), named("set config")[1](config), everything_logged():
            answers["asked"][lines.step] = ask(config, answers)


def layers(config: Any, answers: Doc, report: Doc, lines: Lines) -> None:
    """Ask the layers of the model for what the selectors do not answer; an error here is not a refusal."""
    if answers["refusals"]:
        return
    lines.step = "layers"
    with recording(answers, lines), named("set config")[1](config), everything_logged():
        ask_layers(config, answers, report, lines)
        ask_draft(config, answers, report, lines)


def offline(lines: Lines) -> bool:
    """Whether the release could not reach NVIDIA's artifactory, and no variable replaces its answer."""
    asked = any("artifactory" in one["text"] and one["level"] == "WARNING" for one in lines.kept)
    return asked and "VLLM_HAS_FLASHINFER_CUBIN" not in os.environ
