"""`doctor --deep`: compile and run a kernel of FlashInfer (``inside/deep.py``) in the container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgen.deployment.service import LiveService
from envgen.doctor.model import Context, Finding, Subject, error, info, ok, warning
from envgen.doctor.remedies import envgen
from envgen.engine.values import MISSHAPEN, ExecResult
from envgen.errors import EnvgenError
from envgen.inside import run
from envgen.render.environment import with_start_up

Reply = Mapping[str, Any]
LIMIT = 300  # seconds; compiling a kernel takes 6 to 60
PROGRAM = run.Program("deep", flags=("-X", "faulthandler"))


def examine(context: Context, subject: Subject) -> list[Finding]:
    """Ask in the running container or, with `--run`, in a temporary one; nothing without FlashInfer
    in the profile.
    """
    profile = context.profile
    container = context.container
    if not any(source.package == "flashinfer" for source in profile.sources.values()):
        return []
    if container is not None and container.state == "running":
        execute = run.in_container(
            subject.deployment.engine, container.id, workdir=str(profile.working_dir)
        )
    elif subject.may_start and context.image is not None:
        execute, _ = LiveService(subject.deployment, context.service).temporary_container(
            memory=32 << 30, gpu=True
        )
    else:
        title = "no container for the deep checks"
        start = envgen(context, "up", context.service)
        return [
            replace(
                warning(title, "no container", "a running service", start, case="nothing-runs"),
                check="deep",
            )
        ]

    def started(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return execute(with_start_up(argv), stdin, timeout)

    try:
        return [
            judge(run.ask(started, run.shell_python(profile), PROGRAM, {}, timeout=LIMIT), context)
        ]
    except EnvgenError as problem:
        title = "the deep checks could not run"
        evidence = str(problem).splitlines()[0][:300]
        again = envgen(context, "doctor", "--deep")
        return [replace(warning(title, evidence, "answers", again, case="not-asked"), check="deep")]


def judge(reply: Reply | run.NoAnswer, context: Context) -> Finding:
    """The finding for the kernel's answer, or for the end of a process that gave none."""
    again = envgen(context, "doctor", "--deep", "--json")
    if isinstance(reply, run.NoAnswer):
        how, case = ("hangs", "hangs") if reply.is_late else ("fails", "fails")
        finding = error(f"a kernel {how}", reply.seen, f"an answer in {LIMIT} s", again, case=case)
    else:
        try:
            finding = _kernel(reply["answer"], context)
        except MISSHAPEN as problem:
            evidence = f"{type(problem).__name__} in {str(reply)[:200]}"
            finding = warning(
                "a kernel: unexpected answer", evidence, "an answer", again, case="form"
            )
    return replace(finding, check="deep.kernel")


def _kernel(answer: Any, context: Context) -> Finding:
    if "skipped" in answer:
        title = "no kernel was compiled and run"
        evidence = str(answer["skipped"])
        if context.probe is not None and context.probe.gpus:  # nvidia-smi sees one
            return error(
                title,
                evidence,
                context.probe.gpus[0].name,
                envgen(context, "logs", context.service),
                case="no-gpu",
            )
        return info(title, evidence)
    title = f"{answer['kernel']} compiled and ran in {answer['seconds']} s"
    if answer["right"]:
        return ok(f"{title}, with torch's result")
    return error(
        f"{title}, with a wrong result",
        f"off by {answer['worst']}",
        "torch's result",
        envgen(context, "cache", "list"),
        case="wrong-result",
    )
