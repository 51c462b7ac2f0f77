"""The functions of the installed vLLM, its refusals and its log. Each answer names the function it
used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import itertools
import logging
import os
import re
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import Any, Iterator

from envgen.inside.common import Doc, read_text

LINES = 400  # of the release's own log
STDLIB = os.path.dirname(os.__file__) + os.sep
INSPECTED: list[str] = []  # why a model's class could not be imported


class ReleaseRefused(Exception):
    """The release refused; the message is its own."""


class NotAskable(Exception):
    """This release has no such function, or needs more than is known here."""


class Lines(logging.Handler):
    """Keeps the release's log; ``step``: the current question."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.DEBUG)
        self.step = "import"
        self.kept: list[Doc] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.kept) < LINES:
            text = record.getMessage()[:4000]
            if record.exc_info and record.exc_info[1] is not None:
                text += f": {type(record.exc_info[1]).__name__}: {str(record.exc_info[1])[:1000]}"
            self.kept.append(
                {"step": self.step, "level": record.levelname, "logger": record.name, "text": text}
            )


def causes_of(problem: BaseException) -> list[BaseException]:
    """The exception and all its causes."""
    causes = []
    waiting: list[Any] = [problem]
    while waiting:
        cause = waiting.pop()
        if not isinstance(cause, BaseException) or cause in causes:
            continue
        causes.append(cause)
        waiting.append(
            cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        )
        if type(cause).__name__ == "ValidationError":  # pydantic's, with the validator's error
            with suppress(Exception):
                waiting += [each.get("ctx", {}).get("error") for each in cause.errors()]  # type: ignore[attr-defined]
    return causes


def is_refusal(problem: BaseException) -> bool:
    """Whether the release itself refuses. A bug, a missing package or a missing file is not a
    refusal: the server may have them.
    """
    text = str(problem)
    if "failed to be inspected" in text or re.search(r"\bImportError\b", text):
        return False
    if any(isinstance(one, (ImportError, OSError)) for one in causes_of(problem)):
        return False
    if type(problem).__name__ == "ValidationError" and type(problem).__module__.startswith(
        "pydantic"
    ):
        return True
    if not isinstance(problem, (ValueError, NotImplementedError)) or isinstance(
        problem, UnicodeError
    ):
        return False
    frames = traceback.extract_tb(problem.__traceback__)
    if not frames:
        return False
    last = frames[-1]
    packaged = "site-packages" in last.filename or "dist-packages" in last.filename
    if last.filename.startswith(STDLIB) and not packaged:
        return False  # int("x"), invalid JSON
    return not last.line or last.line.startswith("raise")


def message_of(problem: BaseException) -> str:
    """The message of a refusal, without pydantic's frame."""
    text = str(problem)
    inner = re.search(r"\n\s+(Value error|Assertion failed), (.*?) \[type=", text, re.DOTALL)
    return "%s: %s" % (type(problem).__name__, inner.group(2) if inner else text)


def error_for(problem: BaseException, lines: Lines | None = None) -> Exception:
    """Refused, or NotAskable with the reason and what would give an answer."""
    if is_refusal(problem):
        return ReleaseRefused(message_of(problem))
    why = f"{type(problem).__name__}: {str(problem)[:1000]}"
    chain = causes_of(problem)
    missing = next((one for one in chain if isinstance(one, ImportError)), None)
    logged = [
        one["text"]
        for one in (lines.kept if lines else ())
        if "inspecting model arch" in one["text"]
    ]
    if "failed to be inspected" in why and (INSPECTED or logged):
        why += " (%s)" % (INSPECTED or logged)[-1][-600:]
    if missing is not None or "No module named" in why:
        package = (
            getattr(missing, "name", None)
            or (re.findall(r"No module named '([\w.]+)'", why) or ["it"])[-1]
        )
        known = f"with {package} installed, as in the profile's image"
    elif any(isinstance(one, OSError) for one in chain):
        known = "with the model's files in the cache: `envgen model pull`"
    else:
        known = (
            "where the server starts: this is an error of the release, not a refusal of the model"
        )
    return NotAskable(f"{why}; it would be known {known}")


@contextmanager
def recording(answers: Doc, lines: Lines) -> Iterator[None]:
    """Records an exception inside in ``answers``: as a refusal, or as a question without an answer."""
    try:
        yield
    except ReleaseRefused as no:
        answers["refusals"].append({"step": lines.step, "message": str(no)[:8000]})
    except Exception as odd:
        frame = traceback.extract_tb(odd.__traceback__)[-1]
        why = f"{type(odd).__name__}: {str(odd)[:1000]} ({frame.filename}:{frame.lineno})"
        if isinstance(odd, NotAskable):
            why = str(odd)[:2000]
        answers["unasked"].append({"step": lines.step, "why": why})


# A function or class: its name, and the modules that have it in 0.14 to 0.33, the newest first.
MOE = "vllm.model_executor.layers.fused_moe"
THINGS: dict[str, tuple[str, ...]] = {
    "parser": (
        "make_arg_parser",
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.openai.cli_args",
    ),
    "parser class": ("FlexibleArgumentParser", "vllm.utils.argparse_utils"),
    "arguments": ("AsyncEngineArgs", "vllm.engine.arg_utils"),
    "attention": ("get_attn_backend", "vllm.v1.attention.selector"),
    "attention backends": ("AttentionBackendEnum", "vllm.v1.attention.backends.registry"),
    "experts": ("RoutedExperts", f"{MOE}.routed_experts"),
    "older experts": ("FusedMoE", MOE),
    "plain experts": ("UnquantizedFusedMoEMethod", f"{MOE}.unquantized_fused_moe_method"),
    "experts config": ("FusedMoEConfig", f"{MOE}.config"),
    "experts parallel": ("FusedMoEParallelConfig", f"{MOE}.config"),
    "expert backends": ("MoEBackend", "vllm.config.kernel"),
    "quantization flags": ("QuantizationConfigArgs", "vllm.config.quantization"),
    "routing": ("RoutingMethodType", f"{MOE}.config"),
    "activation": ("MoEActivation", f"{MOE}.activation"),
    "model": ("initialize_model", "vllm.model_executor.model_loader.utils"),
    "set config": ("set_current_vllm_config", "vllm.config"),
    "reasoning-parser": ("ReasoningParserManager", "vllm.reasoning"),
    "tool-call-parser": ("ToolParserManager", "vllm.tool_parsers"),
}


def named(what: str) -> tuple[str, Any]:
    """(place, function) of one of THINGS. NotAskable, with what was not found, without it."""
    name = THINGS[what][0]
    reasons = []
    package = os.path.dirname(str(sys.modules["vllm"].__file__))
    for place in itertools.chain(THINGS[what][1:], moved(name, package)):
        try:
            module = importlib.import_module(place)
        except Exception as problem:
            gone = isinstance(problem, ModuleNotFoundError) and place.startswith(str(problem.name))
            if not gone:
                reasons.append(f"import {place}: {type(problem).__name__}: {problem}")
            continue
        if hasattr(module, name):
            return f"{place}.{name}", getattr(module, name)
    if reasons:
        raise NotAskable("; ".join(reasons))
    raise NotAskable(f"this release has no {name}: looked in {', '.join(THINGS[what][1:])}")


def moved(name: str, package: str) -> Iterator[str]:
    """The module of vLLM that defines one of THINGS, if only one does."""
    if len(places := definitions(package).get(name, [])) == 1:
        yield places[0]


@functools.lru_cache(maxsize=None)
def definitions(package: str) -> dict[str, list[str]]:
    """The name of each of THINGS -> the modules that define it, by their source."""
    names = "|".join(name for name, *_ in THINGS.values())
    pattern = re.compile(rf"^(?:def|class) ({names})\b", re.MULTILINE)
    above = os.path.dirname(package)
    defined: dict[str, list[str]] = {}
    for folder, _, files in os.walk(package):
        for file in files:
            if not file.endswith(".py"):
                continue
            path = f"{folder}/{file}"
            below = os.path.relpath(path, above)
            module = below[: -len(".py")].replace(os.sep, ".")
            for name in set(pattern.findall(read_text(path, 4 << 20))):
                defined.setdefault(name, []).append(module)
    return defined


def model_code(model: Any) -> Any:
    """The module with the release's class of the model."""
    kind = model.registry.resolve_model_cls(model.architectures, model)[0]
    return sys.modules[kind.__module__]


def accepted(function: Any, values: Doc) -> Doc:
    """The values for which this release's function has a parameter."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}


def asked_for(config: Any, part: str, name: str) -> str | None:
    """The service's own choice; None where it leaves the choice to the release."""
    choice = getattr(getattr(config, part, None), name, None)
    return None if choice in (None, "auto") else str(getattr(choice, "name", choice))


def release(report: Doc, lines: Lines) -> None:
    """Import vLLM, and keep its log."""
    for name in ("torch", "flashinfer-python", "flashinfer-cubin", "transformers"):
        with suppress(importlib.metadata.PackageNotFoundError):
            report.setdefault("versions", {})[name] = importlib.metadata.version(name)
    for name in lacking():
        report["notes"].append(
            f"{name} is not installed here, though this vLLM requires it: what needs it is passed "
            "over"
        )
    try:
        vllm = importlib.import_module("vllm")
        importlib.import_module("vllm.logger")  # first: it sets logging up
    except Exception as problem:
        raise NotAskable(f"import vllm: {type(problem).__name__}: {problem}") from None
    place = getattr(vllm, "__file__", None)
    if place is None:
        where = list(getattr(vllm, "__path__", []))
        raise NotAskable(
            f"import vllm gives an empty namespace package ({', '.join(map(str, where))})"
        )
    report["vllm"] = {"version": str(getattr(vllm, "__version__", "unknown")), "file": place}
    logger: Any = logging.getLogger("vllm")
    logger.addHandler(lines)
    remove = logger.removeHandler  # newer releases configure logging again, which would remove ours
    logger.removeHandler = lambda handler: None if handler is lines else remove(handler)


def lacking() -> list[str]:
    """The distributions that the release requires and that are not installed here."""
    missing = []
    with suppress(Exception):  # no metadata: a tree before its build
        requirement = importlib.import_module("packaging.requirements").Requirement
        for line in importlib.metadata.requires("vllm") or ():
            wanted = requirement(line)
            asked = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if asked and not list(importlib.metadata.distributions(name=wanted.name)):
                missing.append(wanted.name)
    return missing


def forget() -> None:
    """Clear the release's caches of FlashInfer's state, of its choices and of messages logged once."""
    for name, module in list(sys.modules.items()):
        if not (
            name.startswith("vllm.")
            and re.search(r"flashinfer|attention|platforms|logger|torch_utils", name)
        ):
            continue
        for cached in list(vars(module).values()):
            if type(cached).__name__ == "_lru_cache_wrapper":  # a platform reports any attribute
                cached.cache_clear()


@contextmanager
def everything_logged() -> Iterator[None]:
    """Log at debug level: the reasons against a choice are debug messages."""
    root = logging.getLogger("vllm")
    level = root.level
    others = [(one, one.level) for one in root.handlers if not isinstance(one, Lines)]
    for handler, _ in others:
        handler.setLevel(max(level, logging.INFO))
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler, before in others:
            handler.setLevel(before)
