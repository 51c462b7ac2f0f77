"""`envgen predict`: what a release would choose on a GPU, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from envgen.app import predict as app
from envgen.app.cluster.machines import head_of
from envgen.app.predict import Prediction
from envgen.app.session import Session
from envgen.binding import JsonDict, JsonObject
from envgen.cli.common import answer, option, reporting, service_argument, variant_option
from envgen.deployment import LiveService
from envgen.errors import ExitCode
from envgen.predict import gpus
from envgen.predict.judge import STEPS, Verdict
from envgen.profile.model import Profile
from envgen.text import GIB, progress


@click.command()
@service_argument
@reporting
@variant_option
@option(
    "--gpu",
    "NAME",
    "Assume this GPU: gb10, h100, ... or a compute capability such as 12.1 (default: the GPU that the "
    "engine has; without one, the first of cuda.arch_list).",
)
@option(
    "--python",
    "PATH",
    "Use the vLLM of this Python interpreter instead of the profile's image.",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
def command(session: Session, service: str | None, gpu: str | None, python: Path | None) -> int:
    """Ask SERVICE's vLLM which kernels it would choose on a GPU, without that GPU.

    Runs vLLM's own argument parser, configuration and kernel selection in the profile's image, with
    a platform that reports the GPU. Prints the attention and MoE backends, quantization, KV cache
    and an estimate of the memory, or the error with which vLLM refuses the settings. Also compares
    the log lines with `ready.expect` and `ready.forbid`. No server is started, and no weights are
    loaded or downloaded.

    Exits with 1 if vLLM refuses the settings, if a log line contradicts `ready`, if the weights
    leave no room for a token, or if vLLM can't be asked.

    \b
    Examples:
      envgen predict serve
      envgen predict serve --variant prod --gpu gb10
      envgen predict serve --python ~/venvs/vllm/bin/python
    """
    profile = session.profile()
    name = app.choose_service(profile, service)
    chosen = gpus.find(gpu) if gpu else gpus.target(profile)
    if python is not None:
        place = app.release_on_host(profile, name, python)
    else:
        head = head_of(session.deployment(), name)
        place = app.release_in_engine(LiveService(head, name))
    progress(f"asking {place.shown} what it would choose for {name}")
    prediction = app.predict(profile, name, place, chosen, pretend=gpu is not None)
    code = ExitCode.OK if prediction.verdict is Verdict.FITS else ExitCode.FINDINGS
    data = document(prediction, profile)
    lines = text(prediction, profile)
    return answer(data, lines, code)


def document(prediction: Prediction, profile: Profile) -> JsonDict:
    """The answer and its judgement as JSON."""
    judged = prediction.judgement
    answer = prediction.known
    asked = answer.get("asked", {})
    return {
        **asdict(judged),
        **{key: answer.get(key) for key in ("model", "quantization", "versions", "compiles")},
        **{key: asked.get(key) for key in ("attention", "moe", "linear", "mamba")},
        "gpu": answer.get("platform"),
        "backends": list(answer.get("backends", ())),
        "kv_cache": answer.get("kv"),
        "memory": prediction.memory and prediction.memory.document(),
        "lines": [one for one in answer.get("lines", ()) if one["level"] != "DEBUG"],
        "place": prediction.place,
        "profile": profile.name,
        "release": answer.get("vllm"),
        "service": prediction.service,
        "stubs": list(answer.get("stubs", ())),
        "variant": profile.variant,
        "verdict": prediction.verdict.value,
    }


def text(prediction: Prediction, profile: Profile) -> list[str]:
    """The answer and its judgement as lines for people."""
    judged = prediction.judgement
    variant = f", variant {profile.variant}" if profile.variant else ""
    answer = prediction.known
    release = _release(answer, prediction.assumed)
    lines = [
        f"{prediction.service} (profile {profile.name}{variant}): {release}, asked in {prediction.place}"
    ]
    lines += [f"  {title:<13} {value}" for title, value in _choices(answer) if value]
    memory = prediction.memory.lines() if prediction.memory else []
    lines += [f"  {'' if number else 'memory':<13} {line}" for number, line in enumerate(memory)]
    # What the selectors log, as a server does; a note covers the line about the artifactory.
    logged = dict.fromkeys(
        line["text"]
        for line in answer.get("lines", ())
        if line["step"] in STEPS[1:]
        and line["level"] != "DEBUG"
        and "artifactory" not in line["text"]
    )
    lines += [f"  {'' if number else 'log':<13} {line}" for number, line in enumerate(logged)]
    lines += _others(answer.get("backends", ()))
    lines += [f"  ready.expect  {name}: {line}" for name, line in judged.shown.items()]
    lines += [
        f"  ready.expect  {name}: logged after the choice, not judged" for name in judged.unjudged
    ]
    for refusal in judged.refusals:
        lines.append(f"refused ({refusal.step}): {refusal.message}")
    for line, contradiction in zip(app.contradicted(judged), judged.contradictions, strict=True):
        lines.append(line)
        if corrected := app.corrected(prediction, contradiction):
            lines.append(f"  this pattern fits: {corrected}")
    lines += [f"not asked: {one}" for one in judged.unasked]
    lines += [f"note: {one}" for one in judged.caveats]
    end = {
        Verdict.FITS: "OK: vLLM accepts the settings, and `ready` matches its log",
        Verdict.TOO_LARGE: "too large: vLLM accepts the settings, but the weights leave no room",
        Verdict.REFUSED: "refused: this service would not start",
        Verdict.CONTRADICTS: "it would start, but never become ready",
        Verdict.UNKNOWN: "incomplete: some choices could not be checked",
    }
    return [*lines, end[prediction.verdict]]


def _others(listed: Sequence[JsonObject]) -> list[str]:
    """The release's other backends: a line for each that it accepts, then those of one step and
    reason together.
    """
    lines = []
    alike = dict[tuple[str, str, str], list[str]]()
    for other in listed:
        if other["verdict"] == "accepted":
            flags = json.dumps(other["args"]).replace('"', "")
            lines.append(f"  {'would fit':<13} {other['step']} {other['backend']}: args: {flags}")
        else:
            first, _, _ = other["reason"].partition("; ")  # --json has all reasons
            names = alike.setdefault((other["verdict"], other["step"], first), [])
            names.append(other["backend"])
    for (verdict, step, reason), names in sorted(alike.items()):
        lines.append(f"  {verdict:<13} {step} {', '.join(names)}: {reason}")
    return lines


def _release(answer: Any, assumed: bool) -> str:
    release = answer.get("vllm")
    gpu = answer.get("platform")
    head = f"vLLM {release['version']}" if release else "vLLM"
    if not gpu:
        return head
    capability = ".".join(map(str, gpu["capability"]))
    size = f"{gpu['memory'] / GIB:.0f} GiB"
    many = f"{gpu['count']} x " if gpu["count"] > 1 else ""
    kind = ", assumed from cuda.arch_list" if assumed else ""
    if gpu["real"]:
        kind = ", real"
    return f"{head} on {many}{gpu['name']} ({capability}, {size}{kind})"


def _choices(answer: Any) -> list[tuple[str, str]]:
    asked = answer.get("asked", {})
    kv = answer.get("kv") or {}
    model = answer.get("model") or {}
    choices = []
    titles = {
        "attention": "attention",
        "moe": "MoE",
        "linear": "linear",
        "mamba": "Mamba",
    }
    for step, title in titles.items():
        if chosen := asked.get(step):
            request = f"  (asked for: {chosen['asked_for']})" if chosen["asked_for"] else ""
            choices.append((title, chosen["backend"] + request))
    choices.append(("quantization", str(answer.get("quantization") or "")))
    if kv:
        choices.append(("KV cache", f"dtype {kv['dtype']}, blocks of {kv['block_size']}"))
    if model:
        origin = {"envgen": "envgen's own copy", "cache": "the Hugging Face cache"}.get(
            str(model.get("from")), str(model.get("place", ""))
        )
        facts = f"head size {model['head_size']}, " if "head_size" in model else ""
        facts += "attention sinks, " if model.get("sinks") else ""
        facts += f"config.json from {origin}" if origin else "no config.json is known"
        choices.append(("model", f"{model['name']}: {facts}"))
    return choices
