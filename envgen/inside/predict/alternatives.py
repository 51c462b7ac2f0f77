"""Asks the release about each of its other backends of attention and experts.

Each is asked as a service would ask for it, by its flag; nothing that is chosen is changed.
"""

from __future__ import annotations

import re
import typing
from contextlib import contextmanager, suppress
from typing import Any, Callable, Iterator

from envgen.inside.common import Doc
from envgen.inside.predict.attention import ask_attention
from envgen.inside.predict.experts import ask_moe
from envgen.inside.predict.release import Lines, named, recording

MXFP8 = {"moe": {"activation": "mxfp8"}}
REASON = 400  # characters
# Backends of other vendors' hardware, and names that are no kernels for tokens.
ELSEWHERE = re.compile(
    r"rocm|aiter|rdna|flydsl|xpu|cpu|amx|custom|torch_sdpa|no_attention", re.IGNORECASE
)
PAGES = (64, 128)  # tokens of a page, which B12X must be told
OTHER_FORMAT = re.compile(r"moe_backend='?\w+'? is not supported for")


def ask_others(config: Any, report: Doc, lines: Lines) -> list[Doc]:
    """Each backend of the release's own lists that is not chosen: its flag, whether it is accepted,
    and the reason.
    """
    answers = []
    kept = lines.kept
    try:
        for ask in (attention, experts):
            with suppress(Exception):  # another release: what it has is listed
                for answer in ask(config, report, lines):
                    answers.append(answer)
    finally:
        lines.kept = kept
    return answers


def attention(config: Any, report: Doc, lines: Lines) -> Iterator[Doc]:
    kinds = named("attention backends")[1]
    asked_now = report["asked"].get("attention") or {}
    chosen = str(asked_now.get("backend", "")).split(" + ")
    for name, kind in kinds.__members__.items():
        if name not in chosen and not ELSEWHERE.search(name):
            flag: Doc = {"attention-config": {"backend": name}}
            block = config.cache_config.block_size
            if name == "B12X" and block not in PAGES:
                flag["block-size"] = block = max(PAGES)
            with replaced(config.attention_config, "backend", kind), replaced(
                config.cache_config, "block_size", block
            ):
                answer = asked("attention", ask_attention, config, report, lines)
            yield dict(answer, step="attention", backend=name, args=flag)


def experts(config: Any, report: Doc, lines: Lines) -> Iterator[Doc]:
    if not report["asked"].get("moe"):
        return
    names = typing.get_args(named("expert backends")[1])
    model = config.model_config
    listed = {report["asked"]["moe"]["backend"]}
    mxfp4 = getattr(model, "quantization_config", True) is None and "mxfp4" in str(
        report["quantization"]
    )
    for name in (name for name in names if name != "auto" and not ELSEWHERE.search(name)):
        answers = []
        for flag in ({"moe-backend": name}, {"moe-backend": name, "quantization-config": MXFP8})[
            : 1 + mxfp4
        ]:
            value = (
                named("quantization flags")[1](**MXFP8)
                if len(flag) > 1
                else model.quantization_config
            )
            with replaced(config.kernel_config, "moe_backend", name), replaced(
                model, "quantization_config", value
            ):
                answer = asked("moe", ask_moe, config, report, lines)
            backend = answer.pop("chosen", None) or name
            answers.append(dict(answer, step="moe", backend=backend, args=flag))
        # One that is refused with each of its flags is listed once.
        for other in [one for one in answers if one["verdict"] == "accepted"] or answers[:1]:
            if other["backend"] not in listed and not OTHER_FORMAT.search(other["reason"]):
                listed.add(other["backend"])
                yield other


def asked(
    step: str, ask: Callable[[Any, Doc], Doc | None], config: Any, report: Doc, lines: Lines
) -> Doc:
    """The answer to one question: its verdict, and the reason if it is not accepted."""
    answers = dict(report, asked={}, refusals=[], unasked=[], kv={})
    lines.kept = []
    lines.step = step
    set_config = named("set config")[1]
    with recording(answers, lines), set_config(config):
        chosen = ask(config, answers)
        return {"verdict": "accepted", "reason": "", "chosen": chosen and chosen["backend"]}
    why = ""
    for one in answers["refusals"] + answers["unasked"]:
        why = str(one.get("message") or one.get("why"))
        break
    verdict = "refused" if answers["refusals"] else "unknown"
    return {"verdict": verdict, "reason": reason_of(why)}


def reason_of(message: str) -> str:
    """The part of a release's message that says why."""
    listed = re.search(r"Reasons?: \[(.*)\]", message, re.DOTALL)
    if listed:
        quoted = re.findall(r"'[^']*'|\"[^\"]*\"", listed.group(1))
        reasons = "; ".join(one[1:-1] for one in quoted)
        return reasons[:REASON]
    since = re.search(r"deployment configuration since (.*)", message, re.DOTALL)
    return (
        (since.group(1) if since else message)
        .partition("; it would be known")[0]
        .strip()
        .rstrip(".")[:REASON]
    )


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for an attribute, without the checks of the class."""
    before = getattr(holder, name)
    object.__setattr__(holder, name, value)
    try:
        yield
    finally:
        object.__setattr__(holder, name, before)
