"""Steps: a day of `dev`, and from an edit to production: a kernel's patch on the released wheel,
and back.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from envgen.app.patch_sources import with_line
from gpu_day.change import answers, traced
from gpu_day.day import SMALL_MOE as SMALL
from gpu_day.day import Day, Done, NotRun, Rows, start, step
from gpu_day.models import NAME, TOP

SMALL_MOE = Path(__file__).with_name(SMALL)
HEADER = "include/flashinfer/quantization.cuh"
OLD, NEW = "output[start_offset / 8 + tx] = ret;", "output[start_offset / 8 + tx] = 0;"
RIGHT = 8 * 255
# 64 bits that are set, packed by FlashInfer's kernel, which is compiled for it where the cache has
# none.
PACK = """
import time, torch, flashinfer
began = time.monotonic()
total = int(flashinfer.packbits(torch.ones(64, dtype=torch.bool, device="cuda")).sum())
print("sum", total, "after", round(time.monotonic() - began, 1), "s")
"""
READ = f"""
import flashinfer, pathlib
print(pathlib.Path(flashinfer.__file__).parent.joinpath("data/{HEADER}").read_text(), end="")
"""


def _python(day: Day, program: str) -> Done:
    return day.envgen("run", "-T", day.service, "--", "python3", "-c", program, timeout=1800)


def _packs(day: Day, rows: Rows, what: str, expected: int) -> None:
    done = _python(day, PACK)
    seen = re.search(r"sum (\d+) after ([\d.]+) s", done.out)
    held = seen is not None and int(seen[1]) == expected
    rows.add(
        what,
        held,
        seen[0] if seen else done.last,
        f"sum {expected}",
        float(seen[2]) if seen else None,
    )


def _build(day: Day, rows: Rows, what: str) -> None:
    unlocked = bool(day.options.base or day.options.wheels)
    if not unlocked:
        day.envgen("lock")
    done = day.envgen("build", *(["--unlocked"] if unlocked else []), timeout=3600)
    rows.add(what, done.code == 0, done.last, "exit 0", done.seconds)


@step("ship", "a kernel that returns zeros, as a patch of the released wheel; and without it again")
def ship(day: Day, rows: Rows) -> None:
    if day.foreign:
        raise NotRun("the project is your own: its patches stay as they are")
    day.envgen("down")  # what runs has the image of now
    _packs(day, rows, "the released kernel", RIGHT)
    lines = _python(day, READ).out.splitlines(keepends=True)
    new = "".join(lines).replace(OLD, NEW, 1).splitlines(keepends=True)
    if lines == new:
        raise NotRun(f"{HEADER} of this release has not the line that this program knows")
    diff = "".join(difflib.unified_diff(lines, new, f"a/{HEADER}", f"b/{HEADER}"))
    project, series = day.project / "envgen.yaml", day.project / "patches/gpu_day/series"
    before = project.read_text()
    series.parent.mkdir(parents=True, exist_ok=True)
    series.write_text("0001-zeros.patch\n")
    series.with_name("0001-zeros.patch").write_text(
        f"Description: packbits returns zeros\n\n{diff}"
    )
    place = ("profiles", day.profile, "sources", "flashinfer")
    try:
        project.write_text(with_line(before, place, ("patches", "gpu_day")))
        check = day.envgen("patch", "check")
        rows.add("envgen patch check", None, check.out.strip() or check.last)
        _build(day, rows, "envgen build, with the patch")
        _packs(day, rows, "the patched kernel", 0)
        why = day.envgen("cache", "why", "quantization").out
        rows.add("cache why names the patch", "gpu_day/0001-zeros.patch" in why, why.strip())
        found = day.envgen("doctor", "--run", "--json").document.get("findings", [])
        titles = [one["title"] for one in found if one["check"] == "patches.claimed"]
        rows.add(
            "doctor names it, and where it counts",
            any("gpu_day/0001-zeros" in title for title in titles),
            titles,
        )
    finally:
        project.write_text(before)
    _build(day, rows, "envgen build, without it")
    _packs(day, rows, "the released kernel again, from its cache", RIGHT)


# --- dev
# --------------------------------------------------------------------------------------------------------------

VERSIONS = (
    "import importlib.metadata as m; print(m.version('vllm'), m.version('flashinfer-python'))"
)
LINE = "gpu-day was here"
# What vLLM's and FlashInfer's builds ask for beyond what their wheels bring.
BUILD = ("cmake>=3.26.1", "setuptools-scm>=8.0", "setuptools-rust>=1.9.0", "wheel", "ninja")


def _development(day: Day) -> tuple[Day, Path]:
    """The same day with the profile `dev`, and the folder of its checkouts, made of the releases'
    source archives.
    """
    folder = day.project / "dev"
    folder.mkdir(exist_ok=True)
    done = _python(day, VERSIONS)
    versions = done.out.split()[-2:]
    if done.code or len(versions) != 2:
        raise NotRun(
            f"the releases of profile {day.profile} are not known ({done.last}): run the step `image` first"
        )
    for name, distribution, version in zip(
        ("vllm", "flashinfer"), ("vllm", "flashinfer-python"), versions, strict=True
    ):
        fetch = [
            sys.executable,
            str(TOP / "scripts/fetch-source"),
            f"{distribution}=={version}",
            str(folder / name),
        ]
        if not (folder / name / ".git").exists() and (got := day.run(fetch)).code:
            raise NotRun(f"no source archive of {distribution} {version}: {got.last}")
    shipped = yaml.safe_load((TOP / "envgen.yaml").read_text())
    profiles = {name: shipped["profiles"][name] for name in (day.profile, "dev")}
    for name in ("vllm", "flashinfer"):
        profiles["dev"]["sources"][name]["origin"]["checkout"] = name
    shipped |= {"name": f"{NAME}-dev", "default_profile": "dev", "profiles": profiles}
    (folder / "envgen.yaml").write_text(yaml.safe_dump(shipped, sort_keys=False))
    local = yaml.safe_load((day.project / "envgen.local.yaml").read_text())
    if day.options.wheels:  # without an index what their builds need has to be in the image
        own = local["profiles"][day.profile]
        tools = shipped["profiles"][day.profile]["pip"]["tools"]
        pip = own.setdefault("pip", {})
        pip["tools"] = [*pip.get("tools", tools), *BUILD]
        own.setdefault("build", {})["ccache"] = False  # which a base without a network may lack
    local["profiles"]["dev"] = {"services": {"serve": _elsewhere(day)}}
    if day.options.small_moe:
        day.run(["git", "-C", str(folder / "flashinfer"), "apply", str(SMALL_MOE)])
    (folder / "envgen.local.yaml").write_text(yaml.safe_dump(local, sort_keys=False))
    options = {**vars(day.options), "project": str(folder), "profile": "dev"}
    return Day(argparse.Namespace(**options)), folder


def _elsewhere(day: Day) -> dict[str, Any]:
    """What `dev` serves with on a GPU that is no GB10: FlashInfer's attention and CUTLASS MoE, too,
    whose activations are in BF16 there.
    """
    arguments: dict[str, Any] = {}
    if day.options.small_moe:  # trying out kernels would call those that it lacks
        arguments["kernel-config"] = {"enable_flashinfer_autotune": False}
    if any(gpu["compute_cap"].startswith("12") for gpu in day.gpus()):
        return {"args": arguments}
    return {"args": {**arguments, "quantization-config": None}, "ready": {"expect": {"moe": None}}}


def _moe(mine: Day) -> list[str]:
    """The MoE modules that are compiled."""
    listed = mine.envgen("cache", "list", "--json").document.get("modules", [])
    return [str(one["name"]) for one in listed if str(one["name"]).startswith("fused_moe")]


@step("dev", "your checkouts: the four commands, an edit of Python and one of a kernel")
def dev(day: Day, rows: Rows) -> None:
    if day.foreign or day.profile != "prod":
        raise NotRun("it is the shipped `dev`, which extends `prod`")
    day.envgen("down")
    mine, folder = _development(day)
    built = mine.envgen("build", "--unlocked", timeout=3600)
    rows.add("envgen build --profile dev", built.code == 0, built.last, "exit 0", built.seconds)
    try:
        if not start(mine, rows, "envgen up serve: installs both checkouts, and answers"):
            return
        doctor = mine.envgen("doctor")
        rows.add(
            "envgen doctor",
            doctor.code == 0,
            doctor.out.strip().splitlines()[-1:],
            "no error",
            doctor.seconds,
        )
        modules = _moe(mine)
        rows.add("its MoE module", bool(modules), modules, "fused_moe_*")
        for name in modules[:1]:
            cleared = mine.envgen("cache", "clear", name)
            rows.add(f"envgen cache clear {name}", cleared.code == 0, cleared.out.strip())
            rows.add("it is gone", not _moe(mine), _moe(mine), "no module")
        with (folder / "vllm/vllm/__init__.py").open("a") as file:
            file.write(f'\nprint("{LINE}", flush=True)\n')
        told = mine.envgen("doctor").out
        rows.add(
            "doctor after an edit of vLLM's Python",
            "older code" in told,
            [x for x in told.splitlines() if "older code" in x],
        )
        again = mine.envgen("restart", "serve", timeout=3600)
        rows.add(
            "envgen restart serve: the edit runs",
            LINE in mine.log("serve"),
            again.last,
            LINE,
            again.seconds,
        )
        rows.add("the MoE module is compiled again", _moe(mine) == modules, _moe(mine))
        if again.code == 0:
            rows.add("it answers", answers(mine), "", "an answer")
        _kernel(mine, rows, folder / "flashinfer" / HEADER)
        # It starts the server again, and so comes when nothing else is to be seen of this start.
        traced(mine, rows, "envgen trace: FlashInfer's kernels")
    finally:
        mine.envgen("down", "--volumes")


def _kernel(mine: Day, rows: Rows, header: Path) -> None:
    """A kernel that is edited under an old time: stale, named, cleared, compiled again."""
    _packs(mine, rows, "the kernel of the checkout", RIGHT)
    text = header.read_text()
    header.write_text(text.replace(OLD, NEW, 1))
    os.utime(header, (1577836800, 1577836800))
    _packs(mine, rows, "after an edit under an old time the old kernel runs", RIGHT)
    why = mine.envgen("cache", "why", "quantization").out
    rows.add("cache why names the header", header.name in why, why.strip())
    cleared = mine.envgen("cache", "clear", "quantization")
    rows.add("cache clear quantization", cleared.code == 0, cleared.out.strip())
    _packs(mine, rows, "the edited kernel", 0)
    header.write_text(text)
