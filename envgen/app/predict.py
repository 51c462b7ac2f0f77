"""`envgen predict`: choose where vLLM is asked, send the question, and say what its answer means.

The program that runs there is ``envgen/inside/predict``; ``envgen/predict`` judges what it answers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.app.session import the_service
from envgen.binding import JsonObject
from envgen.deployment import LiveService
from envgen.engine.host import meminfo
from envgen.errors import EnvgenError, NotFoundError, Problem
from envgen.inside import run
from envgen.jitcache.service import JitCache
from envgen.predict.answer import checked
from envgen.predict.arguments import in_short, key_of
from envgen.predict.compiling import Compiling, by_words, compiles_less, large_module
from envgen.predict.gpus import Gpu, target
from envgen.predict.judge import (
    Contradiction,
    Judgement,
    Refusal,
    Verdict,
    backends,
    judge,
)
from envgen.predict.memory import Estimate, estimate
from envgen.profile.model import GpuMode, Profile
from envgen.profile.service import Service
from envgen.recipes.shipped import models as known_models
from envgen.render.compose import server_words
from envgen.render.environment import compose_env, overlay_volume, service_env
from envgen.serve.memory import held_by
from envgen.serve.preflight import PreflightError
from envgen.text import shell_line

PROGRAM = run.Program("predict/main")
TIMEOUT = 300.0  # seconds; two idle cores need 15 to 40
SERVER = "vllm.entrypoints.openai.api_server"
CONTRADICTED = {"expect": "is never logged", "forbid": "is logged"}


@dataclass(frozen=True)
class AskedRelease:
    """Where a release is asked: the runner, the Python, and the place as it is printed."""

    execute: run.Execute
    python: str
    shown: str
    has_gpu: bool = False  # the machine's GPU is visible there
    code: Sequence[bytes] = ()  # of other releases, in place of what is installed


@dataclass(frozen=True)
class Prediction:
    """A release's answer about a service, and its judgement."""

    service: str
    place: str
    answer: JsonObject | run.NoAnswer
    judgement: Judgement
    assumed: bool = False  # no GPU was seen and none was named: that of cuda.arch_list

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that was asked about."""
        platform = self.known.get("platform")
        if not platform:
            return None
        major, minor = platform["capability"]
        return Gpu(platform["name"], major, minor, platform["memory"])

    @property
    def known(self) -> JsonObject:
        """The answer; empty where there is none."""
        return {} if isinstance(self.answer, run.NoAnswer) else self.answer

    @property
    def memory(self) -> Estimate | None:
        """Memory needed on each GPU; None if the answer lacks a figure."""
        gpu = self.gpu
        return estimate(self.known.get("size"), gpu.memory, unified=gpu.unified) if gpu else None

    @property
    def verdict(self) -> Verdict:
        """The judgement's; or that, by the estimate, the weights leave no room for a token."""
        judged = self.judgement.verdict
        is_too_large = self.memory is not None and self.memory.context_that_fits == 0
        return Verdict.TOO_LARGE if judged is Verdict.FITS and is_too_large else judged

    @property
    def chosen(self) -> str:
        """``on NVIDIA GB10 vLLM would use attention FLASHINFER, moe MARLIN``; "" if no kernel is
        known.
        """
        names = ", ".join(f"{step} {name}" for step, name in backends(self.known).items())
        assumed = " (assumed: cuda.arch_list)" if self.assumed else ""
        return f"on {self.gpu.name}{assumed} vLLM would use {names}" if names and self.gpu else ""


def vllm_words(service: Service) -> tuple[str, ...]:
    """What follows `vllm serve` in the command of the container; of a cluster, that of the head."""
    words = server_words(service, "0", "127.0.0.1", leads=True)
    return tuple(words[2:] if service.is_vllm else words[words.index(SERVER) + 1 :])


def servers(profile: Profile) -> list[str]:
    """The services that start vLLM."""
    return [name for name, service in profile.services.items() if service.is_vllm_server]


def choose_service(profile: Profile, wanted: str | None) -> str:
    """The service to ask about: ``wanted``, or the only one that starts vLLM. UsageError otherwise."""
    names = servers(profile)
    hint = "another profile? add --profile NAME"
    if names:
        hint = profile.hint("predict", names[0])
    lacking = "starts no `vllm serve`, so vLLM can't be asked"
    return the_service(profile, wanted, names, lacking, hint)


def release_in_engine(service: LiveService, *, fresh: bool = False) -> AskedRelease:
    """The running container of the service, else a temporary container of the image. ``fresh``:
    always the latter.
    """
    deployment = service.deployment
    profile = service.profile
    python = run.shell_python(service.profile)
    running = [] if fresh else deployment.containers((service.name,), all=False)
    for container in running:
        if container.state == "running":
            folder = str(profile.working_dir)
            execute = run.in_container(deployment.engine, container.id, workdir=folder)
            has_gpu = profile.gpu is not GpuMode.NONE
            return AskedRelease(execute, python, f"container {container.name}", has_gpu)
    if deployment.image is None:
        message = f"the image {profile.image_name} is not built, so vLLM can't be asked"
        raise NotFoundError(message, hint=profile.hint("build"))
    where = f"image {profile.image_name}"
    without, _ = service.temporary_container()
    if not service.gpus:
        return AskedRelease(without, python, where)
    gpu, _ = service.temporary_container(gpu=True)
    return AskedRelease(run.first_of(gpu, without), python, where, has_gpu=True)


def release_on_host(profile: Profile, service: str, python: Path) -> AskedRelease:
    """A Python of this machine that has vLLM, with the variables that the service itself sets."""
    env = compose_env(profile, service)
    for path_inside in service_env(profile):
        env.pop(path_inside, None)
    execute = run.on_host(env)
    return AskedRelease(execute, str(python), str(python), has_gpu=True)


def predict(
    profile: Profile, service: str, release: AskedRelease, gpu: Gpu | None, *, pretend: bool
) -> Prediction:
    """Ask the release and judge its answer. ``pretend``: report ``gpu`` even if there is a real
    one; None: a CPU.
    """
    described = profile.services[service]
    words = list(vllm_words(described))
    request = {
        "words": words,
        "gpu": gpu.request() if gpu else None,
        "real": release.has_gpu and not pretend,
        "code": [base64.b64encode(one).decode() for one in release.code],
        "models": {
            repo: facts
            for repo, facts in known_models().items()
            if any(repo in word for word in words)
        },
    }
    answer = checked(run.ask(release.execute, release.python, PROGRAM, request, timeout=TIMEOUT))
    assumed = False
    if not pretend and not isinstance(answer, run.NoAnswer):
        platform = answer.get("platform") or {}
        assumed = not platform.get("real", False)
    return Prediction(service, release.shown, answer, judge(answer, described), assumed)


# Before a service is started


def ask_release(
    service: LiveService, *, replaced: bool = False, code: Sequence[bytes] = ()
) -> list[str]:
    """Notes before a service starts. PreflightError if the release refuses its settings.

    ``replaced``: a running server would be; then its arguments are asked about for a CPU, too.
    ``code``: of other releases, that the image does not have yet.
    """
    profile = service.profile
    name = service.name
    if name not in servers(profile):
        return []
    if profile.mounted_sources and service.engine.volume(overlay_volume(profile)) is None:
        later = "so vLLM is queried (`predict`) from the next start on"
        first = [f"the checkouts are installed first, {later}"]
        if profile.gpu is GpuMode.NONE or not profile.cuda.arch_list.archs:
            return first
        return first + _compile_notes(service, by_words(service.described, target(profile)))
    without_gpu = profile.gpu is GpuMode.NONE
    if without_gpu and not replaced:
        return []  # the server itself says what it does not accept, as soon
    try:
        release = replace(release_in_engine(service, fresh=True), code=code)
        gpu = None if without_gpu else target(profile)
        prediction = predict(profile, name, release, gpu, pretend=False)
    except EnvgenError as problem:
        return [f"vLLM could not be queried: {str(problem).splitlines()[0]}"]
    refusals = [_refused(one, service) for one in prediction.judgement.refusals]
    if refusals:
        raise PreflightError(name, tuple(refusals))
    if isinstance(prediction.answer, run.NoAnswer):
        return [f"vLLM could not be queried: {prediction.answer}"]
    return [] if without_gpu else _notes(service, prediction)


def _notes(service: LiveService, prediction: Prediction) -> list[str]:
    """What the release chooses, needs and compiles, and what it was not asked."""
    judged = prediction.judgement
    notes = [prediction.chosen] if prediction.chosen else []
    notes += _memory_notes(service, prediction)
    notes += _compile_notes(service, large_module(prediction.known))
    notes += [f"not asked: {one}" for one in judged.unasked]
    notes += contradicted(judged)
    return notes + list(judged.warnings)


def _compile_notes(service: LiveService, module: Compiling | None) -> list[str]:
    """What FlashInfer compiles before the first answer, where that takes more than a few minutes."""
    if module is None:
        return []
    with suppress(EnvgenError):
        modules = JitCache(service.deployment).inventory().modules
        if module.module in [one.name for one in modules if one.state == "fresh"]:
            return []
    info = service.engine.info()
    free = info.memory
    if info.local:
        free = meminfo().get("MemAvailable", free)
    needed = service.described.needs_memory
    if needed:
        free -= needed.bytes
    line = module.line(info.cpus, free)
    if not line:
        return []
    less = compiles_less(service.profile, service.name)
    return [f"{line}; {less}" if less else line]


def _memory_notes(service: LiveService, prediction: Prediction) -> list[str]:
    """What the release would take, and whether this machine has it."""
    memory = prediction.memory
    gpu = prediction.gpu
    if memory is None:
        return []
    notes = [f"memory: {'; '.join(memory.lines())}"]
    shared = gpu is not None and gpu.unified and service.deployment.is_local
    free = meminfo().get("MemAvailable") if shared else None
    if free is not None and service.described.needs_memory is None:
        short = memory.short(free)
        notes += [f"{short}; {held_by()}".rstrip("; ")] if short else []
    return notes


def _refused(refusal: Refusal, service: LiveService) -> Problem:
    """A refusal with the key that it is about, where that is known, and what to do."""
    arguments = refusal.step == "arguments"
    key = key_of(refusal.message, service.described) if arguments else ""
    up = service.hint("up")
    anyway = f"`{up} --no-predict` starts it anyway"
    if not key:
        message = f"this vLLM refuses its settings ({refusal.step}): {refusal.message}"
        return Problem(message, hint=f"`{service.hint('predict')}` shows all of it; {anyway}")
    message = f"this vLLM refuses services.{service.name}.{key}: {in_short(refusal.message)}"
    if not key.startswith("args."):
        return Problem(message, hint=anyway)
    _, similar, flag = refusal.message.partition("similar: --")
    without = shell_line(["--set", f"services.{service.name}.{key}=null"])
    cure = f"write args.{flag.split()[0]}" if similar else f"`{up} {without}` leaves it out"
    return Problem(message, hint=f"{cure}; {anyway}")


def contradicted(judged: Judgement) -> list[str]:
    """A line for each `ready` pattern that the release's log lines contradict."""
    return [
        f"ready.{one.kind}.{one.name}: {one.pattern!r} {CONTRADICTED[one.kind]}; this release logs: {one.seen}"
        for one in judged.contradictions
    ]


def corrected(prediction: Prediction, odd: Contradiction) -> str:
    """The line for a project file that replaces a pattern which the release contradicts; "" if none
    is known.
    """
    pattern = prediction.judgement.patterns.get(odd.name, "") if odd.kind == "expect" else ""
    quoted = pattern.replace("'", "''")
    return (
        f"services: {{{prediction.service}: {{ready: {{expect: {{{odd.name}: '{quoted}'}}}}}}}}"
        if pattern
        else ""
    )
