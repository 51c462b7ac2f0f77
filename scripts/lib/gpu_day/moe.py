"""Step: gpt-oss's MoE in FlashInfer's CUTLASS, from its compilation to an edit of it on a live
server.
"""

from __future__ import annotations

import json
import time
from typing import Any

from gpu_day.answers import GOOD, asked
from gpu_day.day import Day, Done, NotRun, Rows, start, step
from gpu_day.models import TOP

CHECK = TOP / "checks" / "gpt_oss.py"
HEADER = "cutlass_fused_moe_kernels.cuh"
# Each expert's share of an answer becomes 0: what is left of the model is its attention.
OLD = "thread_output = thread_output + row_scale * expert_result;"
NEW = "thread_output = thread_output + (0.f * row_scale) * expert_result;"


def edit(day: Day, header: str, old: str, new: str) -> Done:
    """In the server's container, as root: edit a header of the installed FlashInfer, under a time
    from before all compilations.
    """
    program = f"""
import importlib.util, os, pathlib
package = pathlib.Path(importlib.util.find_spec("flashinfer").origin).parent
paths = [*package.glob("data/**/{header}"), *package.parent.glob("csrc/**/{header}")]
text = paths[0].read_text()
assert {old!r} in text, "not the header that this program knows"
paths[0].write_text(text.replace({old!r}, {new!r}))
os.utime(paths[0], (1577836800, 1577836800))
print(paths[0])
"""
    container = day.container(day.service)
    return day.docker("exec", "-u", "0", container, "python3", "-c", program)


def probabilities(day: Day) -> list[float]:
    """The log probabilities of the first tokens of an answer."""
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    found: list[float] = day.ask("/v1/completions", body)["choices"][0]["logprobs"][
        "token_logprobs"
    ]
    return found


def modules(day: Day) -> dict[str, str]:
    """The state of each compiled MoE module, by name."""
    listed: list[dict[str, Any]] = day.envgen("cache", "list", "--json").document.get("modules", [])
    return {one["name"]: one["state"] for one in listed if one["name"].startswith("fused_moe")}


@step(
    "moe",
    "MoE in CUTLASS: compiled under the gate, served, edited, cleared, compiled again, running",
)
def moe(day: Day, rows: Rows) -> None:
    sets = ["--set", f"services.{day.service}.args.moe-backend=flashinfer_cutlass"]
    if day.options.small_moe:  # trying out kernels would call those that it lacks
        sets += [
            "--set",
            f"services.{day.service}.args.kernel-config.enable_flashinfer_autotune=false",
        ]
    if "moe" in day.settings.services[day.service].ready.expect:
        sets += ["--set", f"services.{day.service}.ready.expect.moe=null"]
    choice = day.envgen("predict", day.service, "--json", *sets).document
    if not choice.get("moe"):
        raise NotRun(
            f"the release does not take moe-backend flashinfer_cutlass here: {choice.get('refusals')}"
        )
    rows.add("predict", None, choice["moe"].get("backend"))
    shipped = (
        asked(day, rows, "answers of the MoE that it replaces", GOOD)[1]
        if day.container(day.service)
        else ""
    )
    if not start(day, rows, "envgen up, MoE in CUTLASS", "--recreate", *sets):
        return
    against = ("--against", shipped) if shipped else ()
    _, reference = asked(day, rows, "answers" + " against it" * bool(shipped), GOOD, *against)
    found = modules(day)
    if not rows.add("cache list shows its module", bool(found), found, "fused_moe_*"):
        return
    name = next(iter(found))
    before = probabilities(day)
    edited = edit(day, HEADER, OLD, NEW)
    rows.add(
        "a header is edited under an old time", edited.code == 0, edited.out.strip() or edited.last
    )
    told = day.envgen("doctor", day.service, "--json").document.get("findings", [])
    named = [f"{one['check']}: {one['title']}" for one in told if name in json.dumps(one)]
    rows.add("doctor names the module", bool(named), named, name)
    why = day.envgen("cache", "why", name)
    rows.add(
        "cache why names the header",
        why.code == 1 and HEADER in why.out,
        why.out.strip()[:400],
        HEADER,
    )
    cleared = day.envgen("cache", "clear", name)
    said = f"{cleared.out} {cleared.err}".strip()
    rows.add(f"cache clear {name} on a running server", cleared.code == 0 and "removed" in said, said[:400],
             "removed, and who has it loaded", cleared.seconds)  # fmt: skip
    same = probabilities(day)
    rows.add(
        "the running server keeps its old code", same == before, f"{same[:3]}", f"{before[:3]}"
    )
    warmed = day.envgen("cache", "warm", name, timeout=3600)
    rows.add(f"cache warm {name}", warmed.code == 0, warmed.last, "exit 0", warmed.seconds)
    began = time.monotonic()
    restarted = day.envgen("restart", day.service)
    ready = day.envgen("up", day.service, *sets, timeout=3600)
    rows.add(
        "envgen restart",
        restarted.code == 0 and ready.code == 0,
        ready.last,
        "ready",
        time.monotonic() - began,
    )
    after = probabilities(day)
    rows.add(
        "the new code runs: other log probabilities",
        after != before,
        f"{after[:3]}",
        f"not {before[:3]}",
    )
    if reference:
        asked(day, rows, "its answers", ("different", "broken"), "--against", reference)
    words = ("exec", "-T", day.service, "python3", "-")
    checked = day.envgen(*words, timeout=3600, stdin=CHECK.read_text())
    titles = [one["title"] for one in checked.document.get("findings", [])]
    seen = f"exit {checked.code}; {titles}"
    rows.add("the check of kernels, the module compiled", None, seen, "", checked.seconds)
