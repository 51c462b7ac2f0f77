"""`doctor --deep`: run ``inside/deep.py`` in the container and judge the packages' own answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgen.doctor.model import Context, Finding, Remedy, Subject, error, info, ok, warning
from envgen.doctor.remedies import envgen
from envgen.engine.values import MISSHAPEN, ExecResult
from envgen.errors import EnvgenError
from envgen.inside import run
from envgen.render.environment import with_start_up

Reply = Mapping[str, Any]
# Limit in seconds, title, packages (it needs one of them). Compiling a kernel takes 6 to 60.
QUESTIONS = {
    "gpu": (60, "the GPU", set()), "kernel": (300, "a kernel", {"flashinfer"}),
}  # fmt: skip
PROGRAM = run.Program("deep", flags=("-X", "faulthandler"))


def questions(packages: set[str]) -> dict[str, int]:
    """The questions for a profile with these packages, with their limits in seconds."""
    return {name: limit for name, (limit, _, needs) in QUESTIONS.items() if not needs or needs & packages}


def examine(context: Context, subject: Subject) -> list[Finding]:
    """Ask in the running container or, with `--run`, in a temporary one. One finding for each answer."""
    profile, container = context.profile, context.container
    if container is not None and container.state == "running":
        execute = run.in_container(subject.deployment.engine, container.id, workdir=str(profile.working_dir))
    elif subject.may_start and context.image is not None:
        places = [
            subject.deployment.temporary_container(context.service, memory=32 << 30, gpu=gpu)[0]
            for gpu in (True, False)
        ]
        execute = run.first_of(*places)
    else:
        title, start = "no container for the deep checks", envgen(context, "up", context.service)
        return [replace(warning(title, "no container", "a running service", start, case="nothing-runs"), check="deep")]

    def started(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return execute(with_start_up(argv), stdin, timeout)

    asked, python = questions({source.package for source in profile.sources.values()}), run.shell_python(profile)
    try:
        answers = {
            name: run.ask(started, python, PROGRAM, {"question": name}, timeout=limit) for name, limit in asked.items()
        }
        return judge(answers, context)
    except EnvgenError as problem:
        title, seen = "the deep checks could not run", str(problem).splitlines()[0][:300]
        again = envgen(context, "doctor", "--deep")
        return [replace(warning(title, seen, "answers", again, case="not-asked"), check="deep")]


def judge(answers: Mapping[str, Reply | run.NoAnswer], context: Context) -> list[Finding]:
    """One finding for each answer."""
    findings = []
    gpu = answers.get("gpu")
    gpu_answer = None if gpu is None or isinstance(gpu, run.NoAnswer) else gpu.get("answer")
    has_gpu = isinstance(gpu_answer, dict) and bool(gpu_answer.get("available"))
    again = envgen(context, "doctor", "--deep", "--json")
    for name, reply in answers.items():
        limit, title, _ = QUESTIONS[name]
        try:
            if isinstance(reply, run.NoAnswer):
                finding = _failed(title, reply, limit, again)
            else:
                finding = JUDGES[name](reply["answer"], reply, context, has_gpu)
        except MISSHAPEN as problem:
            seen = f"{type(problem).__name__} in {_shown(reply)}"
            finding = warning(f"{title}: unexpected answer", seen, "an answer", again, case="form")
        findings.append(replace(finding, check=f"deep.{name}"))
    return findings


def _shown(reply: Any) -> str:
    try:
        return json.dumps(reply, default=str)[:200]
    except RecursionError:
        return "an answer that is nested too deeply"


def _failed(title: str, reply: run.NoAnswer, limit: int, again: Remedy) -> Finding:
    """The finding for a process that gave no answer."""
    last = reply.stack[-1] if reply.stack else "nothing was printed"
    if reply.is_late:
        how, seen, case = "hangs", f"no answer in {limit} s; {last}", "hangs"
    elif reply.error != "no answer":
        seen = f"it called sys.exit({reply.message})" if reply.error == "SystemExit" else str(reply)
        how, case = "fails", "raises"
    elif reply.code > 128:
        names = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL (out of memory?)", 11: "SIGSEGV"}
        what = names.get(reply.code - 128, f"signal {reply.code - 128}")
        how, seen, case = "crashes", f"{what}; {last}", "crashes"
    else:
        how, seen, case = "ends the process", f"exit code {reply.code}; {last}", "exits"
    return error(f"{title} {how}", seen[:400], "an answer", again, case=case)


Judge = Callable[[Any, Reply, Context, bool], Finding]


def _gpu(answer: Any, _reply: Reply, context: Context, _has: bool) -> Finding:
    if not answer["available"]:
        title = "no GPU in this container: capability, kernels and FP4 can't be checked here"
        seen = f"torch {answer['torch']}, built for CUDA {answer['cuda'] or '(none)'}"
        if context.profile.gpu.value in ("all", "cdi", "required"):
            return error(title, seen, f"a GPU (gpu: {context.profile.gpu.value})", Remedy("nvidia-smi"), case="no-gpu")
        return info(title, seen, **answer)
    arch = ".".join(map(str, answer["capability"]))
    title = f"{answer['count']} x {answer['name']}, compute capability {arch}"
    return ok(title, **answer)


def _kernel(answer: Any, _reply: Reply, context: Context, _gpu: bool) -> Finding:
    if "skipped" in answer:
        return info("no kernel was compiled and run", str(answer["skipped"]), **answer)
    title = f"{answer['kernel']} compiled and ran in {answer['seconds']} s"
    if answer["right"]:
        return ok(f"{title}, with torch's result", **answer)
    return error(f"{title}, with a wrong result", f"off by {answer['worst']}", "torch's result",
                 envgen(context, "cache", "list"), case="wrong-result", **answer)  # fmt: skip


JUDGES: dict[str, Judge] = {
    "gpu": _gpu, "kernel": _kernel,
}  # fmt: skip
