"""The functions of the installed vLLM, its refusals and its log. Each answer names the function it used."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import logging
import os
import re
import sys
import traceback
from typing import Any, Dict, Iterator, List, Optional, Tuple

from envgen.inside.predict.uses import THINGS, origins

Doc = Dict[str, Any]
LINES = 400  # of the release's own log
STDLIB = os.path.dirname(os.__file__) + os.sep
INSPECTED: List[str] = []  # why a model's class could not be imported


class ReleaseRefused(Exception):
    """The release refused; the message is its own."""


class NotAskable(Exception):
    """This release has no such function, or needs more than is known here."""


class Lines(logging.Handler):
    """Keeps the release's log; ``step``: the current question."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.DEBUG)
        self.step = "import"
        self.kept: List[Doc] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.kept) < LINES:
            text = record.getMessage()[:4000]
            if record.exc_info and record.exc_info[1] is not None:
                text += ": %s: %s" % (type(record.exc_info[1]).__name__, str(record.exc_info[1])[:1000])
            self.kept.append({"step": self.step, "level": record.levelname, "logger": record.name, "text": text})


def causes_of(problem: BaseException) -> List[BaseException]:
    """The exception and all its causes."""
    found: List[BaseException] = []
    waiting: List[Any] = [problem]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or one in found:
            continue
        found.append(one)
        waiting.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
        if type(one).__name__ == "ValidationError":  # pydantic's, with the validator's error
            with contextlib.suppress(Exception):
                waiting += [each.get("ctx", {}).get("error") for each in one.errors()]  # type: ignore[attr-defined]
    return found


def is_refusal(problem: BaseException) -> bool:
    """Whether the release itself refuses. A bug, a missing package or a missing file is not a refusal: the server may
    have them."""
    text = str(problem)
    if "failed to be inspected" in text or re.search(r"\bImportError\b", text):
        return False
    if any(isinstance(one, (ImportError, OSError)) for one in causes_of(problem)):
        return False
    if type(problem).__name__ == "ValidationError" and type(problem).__module__.startswith("pydantic"):
        return True
    if not isinstance(problem, (ValueError, NotImplementedError)) or isinstance(problem, UnicodeError):
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


def error_for(problem: BaseException, lines: Optional[Lines] = None) -> Exception:
    """Refused, or NotAskable with the reason and what would give an answer."""
    if is_refusal(problem):
        return ReleaseRefused(message_of(problem))
    why = "%s: %s" % (type(problem).__name__, str(problem)[:1000])
    chain = causes_of(problem)
    missing = next((one for one in chain if isinstance(one, ImportError)), None)
    logged = [one["text"] for one in (lines.kept if lines else ()) if "inspecting model arch" in one["text"]]
    if "failed to be inspected" in why and (INSPECTED or logged):
        why += " (%s)" % (INSPECTED or logged)[-1][-600:]
    if missing is not None or "No module named" in why:
        package = getattr(missing, "name", None) or (re.findall(r"No module named '([\w.]+)'", why) or ["it"])[-1]
        known = "with %s installed, as in the profile's image" % package
    elif any(isinstance(one, OSError) for one in chain):
        known = "with the model's files in the cache: `envgen model pull`"
    else:
        known = "where the server starts: this is an error of the release, not a refusal of the model"
    return NotAskable("%s; it would be known %s" % (why, known))


@contextlib.contextmanager
def recording(answers: Doc, lines: Lines) -> Iterator[None]:
    """Records an exception inside in ``answers``: as a refusal, or as a question without an answer."""
    try:
        yield
    except ReleaseRefused as no:
        answers["refusals"].append({"step": lines.step, "message": str(no)[:8000]})
    except Exception as odd:
        frame = traceback.extract_tb(odd.__traceback__)[-1]
        why = "%s: %s (%s:%s)" % (type(odd).__name__, str(odd)[:1000], frame.filename, frame.lineno)
        answers["unasked"].append({"step": lines.step, "why": str(odd)[:2000] if isinstance(odd, NotAskable) else why})


def named(what: str) -> Tuple[str, Any]:
    """(place, function) of a thing of this release: see ``uses``. NotAskable, with what was not found, without it."""
    thing, tried, reasons = THINGS[what], [], []
    package = os.path.dirname(str(sys.modules["vllm"].__file__))
    for place in origins(thing, package):
        if place in tried:
            continue
        tried.append(place)
        try:
            module = importlib.import_module(place)
        except Exception as problem:
            gone = isinstance(problem, ModuleNotFoundError) and place.startswith(str(problem.name))
            if not gone:
                reasons.append("import %s: %s: %s" % (place, type(problem).__name__, problem))
            continue
        if hasattr(module, thing.name):
            return "%s.%s" % (place, thing.name), getattr(module, thing.name)
    if reasons:
        raise NotAskable("; ".join(reasons))
    raise NotAskable("this release has no %s: looked in what imports it, and in %s" % (thing.name, ", ".join(tried)))


def accepted(function: Any, values: Doc) -> Doc:
    """The values for which this release's function has a parameter."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}


def asked_for(config: Any, part: str, name: str) -> Optional[str]:
    """The service's own choice; None where it leaves the choice to the release."""
    found = getattr(getattr(config, part, None), name, None)
    return None if found in (None, "auto") else str(getattr(found, "name", found))


def release(report: Doc, lines: Lines) -> None:
    """Import vLLM, and keep its log."""
    for name in ("torch", "flashinfer-python", "flashinfer-cubin", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            report.setdefault("versions", {})[name] = importlib.metadata.version(name)
    try:
        vllm = importlib.import_module("vllm")
        importlib.import_module("vllm.logger")  # first: it sets logging up
    except Exception as problem:
        raise NotAskable("import vllm: %s: %s" % (type(problem).__name__, problem)) from None
    place = getattr(vllm, "__file__", None)
    if place is None:
        where = list(getattr(vllm, "__path__", []))
        raise NotAskable("import vllm gives an empty namespace package (%s)" % ", ".join(map(str, where)))
    report["vllm"] = {"version": str(getattr(vllm, "__version__", "unknown")), "file": place}
    logger: Any = logging.getLogger("vllm")
    logger.addHandler(lines)
    remove = logger.removeHandler  # newer releases configure logging again, which would remove ours
    logger.removeHandler = lambda one: None if one is lines else remove(one)


def forget() -> None:
    """Clear the release's caches of FlashInfer's state, of its choices and of messages logged once."""
    for name, module in list(sys.modules.items()):
        if not (name.startswith("vllm.") and re.search(r"flashinfer|attention|platforms|logger|torch_utils", name)):
            continue
        for one in list(vars(module).values()):
            if type(one).__name__ == "_lru_cache_wrapper":  # a platform reports any attribute
                one.cache_clear()


@contextlib.contextmanager
def everything_logged() -> Iterator[None]:
    """Log at debug level: the reasons against a choice are debug messages."""
    root = logging.getLogger("vllm")
    level, others = root.level, [(one, one.level) for one in root.handlers if not isinstance(one, Lines)]
    for one, _ in others:
        one.setLevel(max(level, logging.INFO))
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        for one, before in others:
            one.setLevel(before)
