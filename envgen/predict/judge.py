"""What a release's answer means for a service: refused, contradicted by its ready patterns, or fitting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from packaging.version import InvalidVersion, Version

from envgen.inside.run import Failure
from envgen.profile.model import Ready, Service

# Which release first does what another one refuses. Facts with their sources; nothing here is asked of a release.


@dataclass(frozen=True)
class First:
    """``release``: the first vLLM that does it, empty for none. ``family``: the GPU's major capability, 0 for any."""

    what: str
    refusal: str  # a regular expression, searched in the release's own words
    release: str
    needs: str
    source: str
    family: int = 0


FIRSTS = (
    First(
        "FlashInfer attention with sinks on compute capability 12.x",
        r"FLASHINFER.*(sink setting|attention sinks) not supported",
        "0.28.0",
        "VLLM_HAS_FLASHINFER_CUBIN=1 and nvcc: its kernels for 12.x are compiled from source, and the cubins that vLLM"
        " looks for have none",
        "vllm#49718, vllm#52148, flashinfer#3170; asked of 0.32.0", 12,
    ),
    First(
        "--moe-backend", r"unrecognized arguments:.*--moe-backend", "0.19.1", "", "the flag is in 0.19.1",
    ),
    First(
        "--quantization-config", r"unrecognized arguments:.*--quantization-config", "0.24.0", "",
        "the flag replaces the MoE variables that 0.24.0 removed",
    ),
    First(
        "--mxfp4-backend and --mxfp4-layers", r"unrecognized arguments:.*--mxfp4-(backend|layers)", "", "",
        "flags of a fork (christopherowen/vllm, commit 045293d8), in no release up to 0.33.0",
    ),
    First(
        "CUTLASS MXFP8 x MXFP4 experts on compute capability 12.x", r"expected CUTLASS, chose MARLIN", "0.19.0",
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS=1; from 0.24.0 on --moe-backend flashinfer_cutlass with"
        ' --quantization-config {"moe": {"activation": "mxfp8"}}; before 0.19.0 the patch 0001 of patches/vllm',
        "asked of 0.20.2, 0.24.0 and 0.32.0", 12,
    ),
)  # fmt: skip


def first(words: str, version: str, family: int) -> str:
    """What is known about a refusal, in one sentence; empty: nothing. A release that should do it already is told only
    what it needs."""
    one = next((f for f in FIRSTS if f.family in (0, family) and re.search(f.refusal, words, re.DOTALL)), None)
    if one is None:
        return ""
    if not one.release:
        return f"{one.what}: {one.source}"
    needs = f"; it needs {one.needs}" if one.needs else ""
    try:
        reached = Version(version) >= Version(one.release)
    except InvalidVersion:  # a checkout without a version
        reached = False
    if reached:
        return f"{one.what} works from vLLM {one.release} on; this is {version}{needs} ({one.source})"
    return f"the first vLLM release with {one.what} is {one.release}{needs} ({one.source})"


class Verdict(Enum):
    """The last word. UNKNOWN: the release could not be asked, or not about all that matters."""

    FITS = "fits"
    REFUSED = "refused"
    CONTRADICTS = "contradicts"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Refusal:
    """What the release refuses, in its own words. ``first``: which release would do it, where that is known."""

    step: str
    message: str
    first: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons that the release lists."""
        listed = re.search(r"Reasons?: \[(.*?)\](?=\s*$|\.)", self.message, re.DOTALL)
        return tuple(one[1:-1] for one in re.findall(r"'[^']*'|\"[^\"]*\"", listed[1])) if listed else ()


@dataclass(frozen=True)
class Contradiction:
    """A pattern of ``ready`` that the release's own lines contradict."""

    kind: str  # expect | forbid
    name: str
    pattern: str
    seen: str
    first: str = ""


@dataclass(frozen=True)
class Judgement:
    """One answer, judged."""

    verdict: Verdict
    refusals: tuple[Refusal, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)  # name of an expected pattern -> the line that fits it
    unjudged: tuple[str, ...] = ()  # patterns about what is logged later than the choice
    unasked: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    cubins: bool = False  # the answer is the one with NVIDIA's cubins
    patterns: Mapping[str, str] = field(default_factory=dict)  # what `ready.expect` should look for


SUBJECTS = {
    "attention": ("attn", "attention"),
    "moe": ("moe", "marlin", "mxfp4", "experts"),
    "quantization": ("quantization=",),
}
STEPS = ("configuration", "attention", "moe", "linear", "mamba")  # whose lines a server logs, too
LEVELS = ("INFO", "WARNING", "ERROR", "CRITICAL")
CUBINS = "FlashInfer's cubins are not here, and NVIDIA's artifactory can't be reached from here"
CUBINS_NEEDED = {
    True: "this holds only where the server can reach NVIDIA's artifactory, or with VLLM_HAS_FLASHINFER_CUBIN=1: on"
    " 12.x no cubins are used, nvcc compiles the kernels",
    False: "this holds only where the server can reach NVIDIA's artifactory, or has the cubins (flashinfer-cubin of"
    " FlashInfer's version, or VLLM_HAS_FLASHINFER_CUBIN=1 where they are there already)",
}


def judge(answer: Mapping[str, Any] | Failure, service: Service) -> Judgement:
    """Compare what the release answered with what the service is waited for.

    Where the choice hangs on NVIDIA's cubins, the release was asked with and without them. The service fits when it
    fits with one of the two answers; the caveat names it.
    """
    if isinstance(answer, Failure):
        return Judgement(Verdict.UNKNOWN, unasked=(f"the program in the container: {answer}",))
    plain = _judge(answer, service)
    if "with_cubins" not in answer:
        return plain
    able = _judge(with_cubins(answer), service)
    better = able.verdict is Verdict.FITS or (plain.refusals and not able.refusals)
    if plain.verdict is not Verdict.FITS and better:
        lost = [one.message for one in plain.refusals] or [one.seen for one in plain.contradictions]
        caveat = f"{CUBINS_NEEDED[_family(answer) == 12]}; without: {'; '.join(lost)}"
        return replace(able, caveats=(*able.caveats, caveat), cubins=True)
    chosen = backends(with_cubins(answer))
    if backends(answer) != chosen:
        other = ", ".join(f"{step} {name}" for step, name in chosen.items())
        return replace(plain, caveats=(*plain.caveats, f"{CUBINS}; with the cubins it would choose: {other}"))
    return plain


def _family(answer: Mapping[str, Any]) -> int:
    return int((answer.get("platform") or {}).get("capability", [0])[0])


def with_cubins(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer as it is where NVIDIA's cubins can be had; the same one where nothing hangs on them."""
    other = answer.get("with_cubins")
    if other is None:
        return answer
    early = [line for line in answer["lines"] if line["step"] not in ("attention", "moe")]
    return {**answer, **other, "lines": [*early, *other["lines"]]}


def backends(answer: Mapping[str, Any]) -> dict[str, str]:
    """Step -> what was chosen."""
    return {step: str(one["backend"]) for step, one in answer.get("asked", {}).items() if isinstance(one, dict)}


def _judge(answer: Mapping[str, Any], service: Service) -> Judgement:
    version = str(answer.get("vllm", {}).get("version", ""))
    family = _family(answer)

    def better(pattern: str, seen: str) -> str:
        """The release that chooses CUTLASS where this one falls back to Marlin."""
        fallen = "cutlass" in pattern.lower() and "marlin" in seen.lower()
        return first("expected CUTLASS, chose MARLIN", version, family) if fallen else ""

    refusals = tuple(
        Refusal(str(one["step"]), str(one["message"]), first(str(one["message"]), version, family))
        for one in answer["refusals"]
    )
    lines = by_subject(answer)
    every = [line for some in lines.values() for line in some]
    ready = service.ready or Ready()
    shown: dict[str, str] = {}
    wrong: list[Contradiction] = []
    later: list[str] = []
    for name, pattern in ready.expect.items():
        subject = _subject(name, pattern)
        if line := _first_match(pattern, every):
            shown[name] = line
        elif lines.get(subject) and not any(one.step == subject for one in refusals):
            seen = _telling(subject, answer, lines)
            wrong.append(Contradiction("expect", name, pattern, seen, better(pattern, seen)))
        elif not refusals:
            later.append(name)
    for name, pattern in ready.forbid.items():
        if seen := _first_match(pattern, every):
            wrong.append(Contradiction("forbid", name, pattern, seen, better(" ".join(ready.expect.values()), seen)))
    verdict = Verdict.FITS
    if refusals:
        verdict = Verdict.REFUSED
    elif wrong:
        verdict = Verdict.CONTRADICTS
    elif any(one["step"] != "speculative-config" for one in answer["unasked"]):
        verdict = Verdict.UNKNOWN
    unasked = tuple(f"{one['step']}: {one['why']}" for one in answer["unasked"])
    return Judgement(
        verdict, refusals, tuple(wrong), shown, tuple(later), unasked, caveats(answer, service),
        patterns=patterns(answer),
    )  # fmt: skip


def rejected(answer: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each backend that the release tried before the one it chose, with its reason."""
    words = re.compile(r"backend '?(.+?)'? does not support the deployment configuration(?: since (.*))?", re.DOTALL)
    found = [{name: str(text) for name, text in one.items()} for one in answer.get("rejected", ())]
    for line in answer.get("lines", ()):
        if line["step"] == "moe" and (one := words.search(line["text"])):
            found.append({"step": "moe", "backend": one[1], "reason": (one[2] or "").strip().rstrip(".")})
    return found


def by_subject(answer: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a server of this release logs about each subject, in the release's own words."""
    found: dict[str, list[str]] = {}
    for line in answer.get("lines", ()):
        if line["level"] in LEVELS and line["step"] in STEPS:
            found.setdefault(str(line["step"]), []).append(str(line["text"]))
    if answer.get("config_line"):
        found["quantization"] = [str(answer["config_line"])]
    return found


def _subject(name: str, pattern: str) -> str:
    lowered = name.lower().replace("quantisation", "quantization")
    if lowered in SUBJECTS:
        return lowered
    # Only a pattern that nothing else could mean: what it doesn't match may be logged later.
    named = [subject for subject, words in SUBJECTS.items() if any(word in pattern.lower() for word in words)]
    return named[0] if len(named) == 1 and "backend" in pattern.lower() else ""


def _first_match(pattern: str, lines: Sequence[str]) -> str:
    """The first line that the pattern finds, or of one that is very long the part that it found."""
    for line in lines:
        if found := re.search(pattern, line):
            return line if len(line) < 300 else f"… {found[0]} …"
    return ""


def _telling(subject: str, answer: Mapping[str, Any], lines: Mapping[str, Sequence[str]]) -> str:
    if subject == "quantization":
        found = re.search(r"quantization=\w+", lines[subject][0])
        return found[0] if found else f"quantization={answer.get('quantization')}"
    return _line_of(subject, answer) or "; ".join(lines[subject])[:300]


def _line_of(subject: str, answer: Mapping[str, Any]) -> str:
    """The line that names the choice: the last one with its words."""
    if not (answer.get("asked", {}).get(subject) or {}).get("backend"):
        return ""
    words = re.compile(r"\busing\b.*backend", re.IGNORECASE)
    lines = by_subject(answer).get(subject, ())
    return next((line for line in reversed(lines) if words.search(line) and "KV cache layout" not in line), "")


def patterns(answer: Mapping[str, Any]) -> dict[str, str]:
    """Regular expressions for `ready.expect`, made of the release's own lines."""
    found = {}
    for subject in ("attention", "moe"):
        if cut := re.search(r"^.*?\bUsing\b.*?\bbackend\b", _line_of(subject, answer)):
            found[subject] = escape(cut[0])
    if quantization := re.search(r"quantization=\w+", str(answer.get("config_line") or "")):
        found["quantization"] = quantization[0]
    return found


def escape(text: str) -> str:
    """A regular expression that finds ``text``, as a person would write it."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def caveats(answer: Mapping[str, Any], service: Service) -> tuple[str, ...]:
    """What makes the answer less than a server's own."""
    found = [str(one) for one in answer.get("notes", ())]
    compiled = [one for one in answer.get("stubs", ()) if str(one["name"]).startswith("vllm.")]
    absent = [str(one["name"]) for one in compiled if "No module named" in one["how"]]
    unloaded = len(compiled) - len(absent)
    if absent:
        found.append(f"no compiled {', '.join(absent)} here: a backend that needs it counts as absent")
    if unloaded:
        found.append(
            f"{unloaded} compiled modules of vLLM can't be loaded here (no CUDA libraries): they count as there"
        )
    if any("Disabling Triton" in line["text"] or "requires Triton" in line["text"] for line in answer.get("lines", ())):
        found.append(
            "Triton finds no driver here and is switched off: what only decides between Triton and others, may differ"
        )
    unloaded_module = re.compile(r"Module (\S+) was found but failed to import")
    lines = [str(line["text"]) for line in answer.get("lines", ())]
    for name in dict.fromkeys(one[1] for line in lines if (one := unloaded_module.search(line))):
        found.append(f"{name} can't be loaded here and counts as absent: in the profile's image it may be chosen")
    platform = answer.get("platform") or {}
    if not platform.get("real", True) and platform.get("count", 1) > 1:
        where = f"{len(service.cluster.nodes)} machines" if service.cluster else "one machine"
        found.append(f"{platform['count']} GPUs are assumed: one a worker, on {where}")
    return tuple(found)
