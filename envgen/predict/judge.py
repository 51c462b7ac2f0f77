"""Judge a release's answer for a service: it fits, is refused, or contradicts the service's `ready`
patterns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from envgen.binding import JsonObject
from envgen.inside.run import NoAnswer
from envgen.profile.service import Ready, Service


class Verdict(Enum):
    """UNKNOWN: the release could not be asked, or not about everything that matters."""

    FITS = "fits"
    TOO_LARGE = "too large"
    REFUSED = "refused"
    CONTRADICTS = "contradicts"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Refusal:
    """What the release refuses, in its own words."""

    step: str
    message: str


@dataclass(frozen=True)
class Contradiction:
    """A pattern of ``ready`` that the release's own lines contradict."""

    kind: str  # expect | forbid
    name: str
    pattern: str
    seen: str


@dataclass(frozen=True)
class Judgement:
    """The judgement of an answer."""

    verdict: Verdict
    refusals: tuple[Refusal, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    # name of an expected pattern -> the line that matches it
    shown: Mapping[str, str] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()  # patterns of lines that are logged after the choice
    unasked: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    patterns: Mapping[str, str] = field(default_factory=dict)  # for `ready.expect`

    @property
    def warnings(self) -> list[str]:
        """The caveats that `up` repeats: what hangs on cubins, what is compiled, and a
        variable that the release does not know.
        """
        return [one for one in self.caveats if REPEATED.search(one) or UNKNOWN_VARIABLE.match(one)]


SUBJECTS = {
    "attention": ("attn", "attention"),
    "moe": ("moe", "marlin", "mxfp4", "experts"),
    "quantization": ("quantization=",),
}
STEPS = (
    "configuration",
    "attention",
    "moe",
    "linear",
    "mamba",
)  # a server logs the lines of these steps too
# vLLM's own warning, from 0.30 on.
UNKNOWN_VARIABLE = re.compile(r"Unknown vLLM environment variable detected: \w+")
REPEATED = re.compile(r"cubins|cache warm")
LEVELS = ("INFO", "WARNING", "ERROR", "CRITICAL")


def judge(answer: JsonObject | NoAnswer, service: Service) -> Judgement:
    """Judge a release's answer by the service's `ready` patterns."""
    if isinstance(answer, NoAnswer):
        return Judgement(Verdict.UNKNOWN, unasked=(f"the program in the container: {answer}",))
    refusals = tuple(Refusal(one["step"], one["message"]) for one in answer["refusals"])
    lines = by_subject(answer)
    every = [line for subject_lines in lines.values() for line in subject_lines]
    ready = service.ready or Ready()
    shown = {}
    wrong = []
    unjudged = []
    for name, pattern in ready.expect.items():
        subject = _subject(name, pattern)
        if line := _first_match(pattern, every):
            shown[name] = line
        elif lines.get(subject) and not any(refusal.step == subject for refusal in refusals):
            wrong.append(
                Contradiction("expect", name, pattern, _decisive_line(subject, answer, lines))
            )
        elif not refusals:
            unjudged.append(name)
    for name, pattern in ready.forbid.items():
        if seen := _first_match(pattern, every):
            wrong.append(Contradiction("forbid", name, pattern, seen))
    verdict = Verdict.FITS
    if refusals:
        verdict = Verdict.REFUSED
    elif wrong:
        verdict = Verdict.CONTRADICTS
    elif any(one["step"] != "speculative-config" for one in answer["unasked"]):
        verdict = Verdict.UNKNOWN
    unasked = tuple(f"{one['step']}: {one['why']}" for one in answer["unasked"])
    return Judgement(
        verdict,
        refusals,
        tuple(wrong),
        shown,
        tuple(unjudged),
        unasked,
        caveats(answer, service),
        patterns=patterns(answer),
    )


def backends(answer: JsonObject) -> dict[str, str]:
    """Step -> chosen backend."""
    return {
        step: one["backend"]
        for step, one in answer.get("asked", {}).items()
        if isinstance(one, dict)
    }


def by_subject(answer: JsonObject) -> dict[str, list[str]]:
    """Subject -> the lines that a server of this release logs about it."""
    lines: dict[str, list[str]] = {}
    for line in answer["lines"]:
        step = line["step"]
        if line["level"] in LEVELS and step in STEPS:
            lines.setdefault(step, []).append(line["text"])
    config_line = answer.get("config_line")
    if config_line:
        lines["quantization"] = [config_line]
    return lines


def _subject(name: str, pattern: str) -> str:
    lowered = name.lower().replace("quantisation", "quantization")
    if lowered in SUBJECTS:
        return lowered
    # Only an unambiguous pattern: for others, the line may be logged later.
    named = [
        subject
        for subject, words in SUBJECTS.items()
        if any(word in pattern.lower() for word in words)
    ]
    return named[0] if len(named) == 1 and "backend" in pattern.lower() else ""


def _first_match(pattern: str, lines: Sequence[str]) -> str:
    """The first line that matches; of a very long line, the match."""
    for line in lines:
        if match := re.search(pattern, line):
            return line if len(line) < 300 else f"… {match[0]} …"
    return ""


def _decisive_line(subject: str, answer: JsonObject, lines: Mapping[str, Sequence[str]]) -> str:
    """What the release logs about a subject: the line with its choice, if any."""
    if subject == "quantization":
        quantization = re.search(r"quantization=\w+", lines[subject][0])
        return quantization[0] if quantization else f"quantization={answer.get('quantization')}"
    return _line_of(subject, answer) or "; ".join(lines[subject])[:300]


def _line_of(subject: str, answer: JsonObject) -> str:
    """The last line that names the chosen backend."""
    if not answer["asked"].get(subject):
        return ""
    words = re.compile(r"\busing\b.*backend", re.IGNORECASE)
    lines = by_subject(answer).get(subject, ())
    return next(
        (line for line in reversed(lines) if words.search(line) and "KV cache layout" not in line),
        "",
    )


def patterns(answer: JsonObject) -> dict[str, str]:
    """Regular expressions for `ready.expect`, from the release's own lines."""
    expressions = {}
    for subject in ("attention", "moe"):
        if cut := re.search(r"^.*?\bUsing\b.*?\bbackend\b", _line_of(subject, answer)):
            expressions[subject] = escape(cut[0])
    if quantization := re.search(r"quantization=\w+", answer.get("config_line") or ""):
        expressions["quantization"] = quantization[0]
    return expressions


def escape(text: str) -> str:
    """``text`` as a regular expression, without the escapes that ``re.escape`` adds needlessly."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def caveats(answer: JsonObject, service: Service) -> tuple[str, ...]:
    """How the answer may differ from a server's."""
    notes = list(answer["notes"])
    compiled = [one for one in answer.get("stubs", ()) if one["name"].startswith("vllm.")]
    if compiled:
        names = ", ".join(one["name"] for one in compiled[:3])
        notes.append(
            f"{len(compiled)} compiled modules of vLLM can't be used here ({names}): "
            "whether a backend needs one is not known"
        )
    unloaded_module = re.compile(r"Module (\S+) was found but failed to import")
    lines = [line["text"] for line in answer["lines"]]
    unknown = filter(None, map(UNKNOWN_VARIABLE.match, lines))
    notes += dict.fromkeys(match[0] for match in unknown)
    unloaded = filter(None, map(unloaded_module.search, lines))
    for name in dict.fromkeys(match[1] for match in unloaded):
        notes.append(
            f"{name} can't be loaded here and counts as absent: the profile's image may choose it"
        )
    platform = answer.get("platform")
    if platform and not platform["real"] and platform["count"] > 1:
        where = f"{len(service.cluster.nodes)} machines" if service.cluster else "one machine"
        notes.append(f"assumes {platform['count']} GPUs, one for each worker, on {where}")
    return tuple(notes)
