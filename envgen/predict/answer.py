"""The shape of a release's answer. It comes from a container, so it is checked before anything
reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from envgen.binding import JsonObject, ShapeError, bind
from envgen.inside.run import NoAnswer
from envgen.predict.judge import Refusal


@dataclass(frozen=True)
class _Logged:
    step: str
    level: str
    text: str


@dataclass(frozen=True)
class _Unasked:
    step: str
    why: str


@dataclass(frozen=True)
class _Stub:
    name: str
    how: str


@dataclass(frozen=True)
class _Backend:
    step: str
    backend: str
    verdict: str  # accepted | refused | unknown
    reason: str
    args: JsonObject


@dataclass(frozen=True)
class _Platform:
    name: str
    capability: tuple[int, ...]
    memory: int
    count: int
    real: bool


@dataclass(frozen=True)
class _Release:
    version: str
    file: str


@dataclass(frozen=True)
class _Kv:
    dtype: str
    block_size: int | None


@dataclass(frozen=True)
class _Model:
    name: str
    place: str | None = None


@dataclass(frozen=True)
class _Choice:
    backend: str
    asked_for: str | None


@dataclass(frozen=True)
class _Compiles:
    module: str
    objects: int


@dataclass(frozen=True)
class _Answer:
    asked: JsonObject
    refusals: tuple[Refusal, ...]
    unasked: tuple[_Unasked, ...]
    notes: tuple[str, ...]
    lines: tuple[_Logged, ...]
    stubs: tuple[_Stub, ...] = ()
    backends: tuple[_Backend, ...] = ()
    platform: _Platform | None = None
    vllm: _Release | None = None
    kv: _Kv | None = None
    model: _Model | None = None
    quantization: str | None = None
    config_line: str | None = None
    compiles: _Compiles | None = None


def checked(answer: JsonObject | NoAnswer) -> JsonObject | NoAnswer:
    """The answer, or NoAnswer with the reason if it has another shape."""
    if isinstance(answer, NoAnswer):
        return answer
    try:
        _check(bind(_Answer, answer))
    except ShapeError as problem:
        return NoAnswer("the answer can't be read", str(problem)[:300])
    except RecursionError:
        return NoAnswer("the answer can't be read", "it is nested too deep")
    return answer


def _check(answer: _Answer) -> None:
    for step, choice in answer.asked.items():
        if choice is not None and step != "parser":
            bind(_Choice, choice, f"asked.{step}")
    if answer.platform and len(answer.platform.capability) != 2:
        raise ShapeError("platform is not that of a GPU")
    if answer.compiles and not answer.compiles.module.isidentifier():
        raise ShapeError("compiles names no module")
