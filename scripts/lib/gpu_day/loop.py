"""Step: from an edit to production - a kernel's patch on the released wheel, and back."""

from __future__ import annotations

import difflib
import re

from envgen.app.patch_sources import with_line
from gpu_day.day import Day, Done, NotRun, Rows, step

HEADER = "include/flashinfer/quantization.cuh"
OLD, NEW = "output[start_offset / 8 + tx] = ret;", "output[start_offset / 8 + tx] = 0;"
RIGHT = 8 * 255
# 64 bits that are set, packed by FlashInfer's kernel, which is compiled for it where the cache has none.
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
    rows.add(what, held, seen[0] if seen else done.last, f"sum {expected}", float(seen[2]) if seen else None)


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
    _packs(day, rows, "the released kernel", RIGHT)
    lines = _python(day, READ).out.splitlines(keepends=True)
    new = "".join(lines).replace(OLD, NEW, 1).splitlines(keepends=True)
    if lines == new:
        raise NotRun(f"{HEADER} of this release has not the line that this program knows")
    diff = "".join(difflib.unified_diff(lines, new, f"a/{HEADER}", f"b/{HEADER}"))
    project, series = day.project / "envgen.yaml", day.project / "patches/gpu-day/series"
    before = project.read_text()
    series.parent.mkdir(parents=True, exist_ok=True)
    series.write_text("0001-zeros.patch\n")
    series.with_name("0001-zeros.patch").write_text(f"Description: packbits returns zeros\n\n{diff}")
    place = ("profiles", day.profile, "sources", "flashinfer")
    try:
        project.write_text(with_line(before, place, ("patches", "gpu-day")))
        check = day.envgen("patch", "check")
        rows.add("envgen patch check", None, check.out.strip() or check.last)
        _build(day, rows, "envgen build, with the patch")
        _packs(day, rows, "the patched kernel", 0)
        why = day.envgen("cache", "why", "quantization").out
        rows.add("cache why names the patch", "gpu-day/0001-zeros.patch" in why, why.strip())
        found = day.envgen("doctor", "--json").document.get("findings", [])
        titles = [one["title"] for one in found if one["check"] in ("image.patches", "patches.claimed")]
        rows.add("doctor names it, and where it counts", len(titles) == 2, titles)
    finally:
        project.write_text(before)
    _build(day, rows, "envgen build, without it")
    _packs(day, rows, "the released kernel again, from its cache", RIGHT)
