"""Runs inside the container: asks its vLLM what it would choose on a GPU that may be absent.

The answers are those of the release's own parser, configuration and selectors.
"""

from __future__ import annotations

import base64
import glob
import io
import itertools
import os
import sys
import tempfile
import zipfile
from contextlib import suppress
from typing import Any

from envgen.inside.common import Doc
from envgen.inside.predict.alternatives import ask_others
from envgen.inside.predict.attention import ask_attention
from envgen.inside.predict.compiles import all_reduce, large_module
from envgen.inside.predict.config import configured, find_config, known_parsers, parsed
from envgen.inside.predict.experts import ask_moe
from envgen.inside.predict.layers import ask_layers
from envgen.inside.predict.machine import SUPPORTED, driver, set_platform, unloadable
from envgen.inside.predict.release import (
    Lines,
    everything_logged,
    forget,
    named,
    recording,
    release,
)

CUBINS = "VLLM_HAS_FLASHINFER_CUBIN"
NEEDED = (
    "true only if the server can reach NVIDIA's artifactory, has the cubins (flashinfer-cubin of FlashInfer's version),"
    " or has VLLM_HAS_FLASHINFER_CUBIN=1 (on 12.x nvcc compiles the kernels, without cubins); otherwise: "
)
HANGS = (
    "vLLM's compiled code, which is not here, is asked whether it has %s: if so the choice is %s, else %s; it would be"
    " known in the profile's image"
)
OTHERS = (
    "NVIDIA's artifactory can't be reached from here; with FlashInfer's cubins it would choose: "
)


def answer(request: Doc) -> Doc:
    lines = Lines()
    report: Doc = {"asked": {}, "refusals": [], "unasked": [], "stubs": [], "notes": []}
    report["python"] = sys.version.split()[0]
    with tempfile.TemporaryDirectory(prefix="envgen-predict-") as folder, recording(report, lines):
        # No download, and no write to the service's caches.
        os.environ.update(
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_CACHE_ROOT=f"{folder}/cache",
            FLASHINFER_WORKSPACE_BASE=folder,
        )
        for number, code in enumerate(request.get("code", ())):
            lay_over(code, f"{folder}/code-{number}")
        release(report, lines)
        ask_release(request, report, lines, folder)
    report["lines"] = lines.kept
    return report


def lay_over(code: str, folder: str) -> None:
    """Import another release's Python (an archive) in place of what is installed, whose compiled
    modules it gets.
    """
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(code))) as archive:
        archive.extractall(folder)
    for package, here in itertools.product(os.listdir(folder), filter(None, sys.path)):
        compiled = glob.glob(f"{here}/{package}/**/*.so", recursive=True)
        for path in compiled:
            below = os.path.relpath(path, here)
            link = f"{folder}/{below}"
            os.makedirs(os.path.dirname(link), exist_ok=True)
            with suppress(FileExistsError):
                os.symlink(path, link)
    sys.path.insert(0, folder)
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{rest}" if rest else folder


def ask_release(request: Doc, report: Doc, lines: Lines, folder: str) -> None:
    cpu = bool(glob.glob(f"{os.path.dirname(report['vllm']['file'])}/_C_AVX*.so"))
    if cpu or request["gpu"] is None:
        lines.step = "arguments"
        known_parsers(parsed(request, report), report)
        why = "no GPU was asked about"
        if cpu:
            why = "a build for CPUs, which has no kernels for a GPU"
        report["unasked"].append({"step": "this vLLM", "why": why})
        return
    lines.step = "platform"
    driver(report)
    unloadable(report)
    platform = set_platform(request, report, folder)
    lines.step = "arguments"
    args = parsed(request, report)
    known_parsers(args, report)
    find_config(args, request, report, folder)
    lines.step = "configuration"
    if not platform["real"]:
        platform["count"] = workers_here(args)
        forget()
    config = configured(args, report, lines)
    selected, logged = selectors(config, report, lines)
    warnings = [one["text"] for one in logged if one["level"] == "WARNING"]
    if CUBINS not in os.environ and any("artifactory" in text for text in warnings):
        selected, logged = with_cubins(config, report, lines, selected, logged)
    compiled(config, report, lines, selected, logged)
    with suppress(AttributeError):  # an older release
        report["notes"] += all_reduce(config)
    report["compiles"] = large_module(dict(report, asked=selected["asked"]))
    lines.kept += logged
    report["asked"].update(selected["asked"])
    for name in ("refusals", "unasked"):
        report[name] += selected[name]
    if not report["refusals"]:
        lines.step = "layers"
        with recording(report, lines), named("set config")[1](config), everything_logged():
            ask_layers(config, report, lines)
    report["backends"] = ask_others(config, report, lines)


def workers_here(args: Any) -> int:
    """The workers of this machine, each of which has a GPU."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "nnodes")
    tensor, pipeline, machines = (int(getattr(args, name, 1) or 1) for name in names)
    return max(tensor * pipeline // machines, 1)


def with_cubins(
    config: Any, report: Doc, lines: Lines, selected: Doc, logged: list[Doc]
) -> tuple[Doc, list[Doc]]:
    """The selectors' answers, and what they log, where NVIDIA's artifactory can't be reached from
    here. Whether it can depends on where the server starts, so they are asked for that, too.
    """
    os.environ[CUBINS] = "1"
    forget()
    others, again = selectors(config, report, lines)
    if selected["refusals"] and not others["refusals"]:
        refused = "; ".join(one["message"] for one in selected["refusals"])
        report["notes"].append(NEEDED + refused)
        return others, again
    del os.environ[CUBINS]
    forget()
    if selected["asked"] != others["asked"]:
        made = others["asked"].items()
        chosen = [f"{step} {one['backend']}" for step, one in made if one]
        report["notes"].append(OTHERS + ", ".join(chosen))
    return selected, logged


def compiled(config: Any, report: Doc, lines: Lines, selected: Doc, logged: list[Doc]) -> None:
    """Take back each choice that hangs on what vLLM's compiled code supports, where it is not here."""
    questions = sorted(set(SUPPORTED["asked"]))
    if not questions:
        return
    SUPPORTED["answer"] = True
    others, _ = selectors(config, report, lines)
    SUPPORTED["answer"] = False
    for step, choice in selected["asked"].items():
        other = others["asked"].get(step)
        if choice and choice != other:
            why = HANGS % (", ".join(questions), other and other["backend"], choice["backend"])
            selected["unasked"].append({"step": step, "why": why})
            selected["asked"][step] = None
            logged[:] = [line for line in logged if line["step"] != step]


def selectors(config: Any, report: Doc, lines: Lines) -> tuple[Doc, list[Doc]]:
    """What each selector answers (its choice, its refusal, or why there is none), and what it logs."""
    answers = dict(report, asked={}, refusals=[], unasked=[])
    before = lines.kept
    lines.kept = []
    SUPPORTED["asked"] = []
    set_config = named("set config")[1]
    for step, ask in (("attention", ask_attention), ("moe", ask_moe)):
        lines.step = step
        with recording(answers, lines), set_config(config), everything_logged():
            answers["asked"][step] = ask(config, answers)
    logged = lines.kept
    lines.kept = before
    return answers, logged
