"""Text that runs in a container's own Python, with its packages: FlashInfer builds the modules named in argv.

FlashInfer's own generators and its own build are used, under its own lock, so what comes out is what the first use
would have made. What ninja prints goes to stdout as it is; lines that start with MARK are ours.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import types
from collections.abc import Callable
from typing import Any

MARK = "\x01envgen "


def say(**words: object) -> None:
    """One line for the host."""
    sys.stdout.write(MARK + json.dumps(words) + "\n")
    sys.stdout.flush()


def tokens(name: str) -> set[str]:
    """The words of a name: sm120 and 120 are the same."""
    parts = {part[2:] if part.startswith("sm") and part[2:].isdigit() else part for part in name.split("_")}
    return parts - {"", "gen", "module"}


def generators(jit: types.ModuleType) -> list[tuple[str, Callable[[], Any]]]:
    """Everything in flashinfer.jit that makes a module without being told more than its defaults."""
    found: dict[str, Callable[[], Any]] = {}
    for info in pkgutil.walk_packages(jit.__path__, jit.__name__ + "."):
        try:
            module = importlib.import_module(info.name)
        except Exception:
            continue  # what this release can't import here, it can't build here
        for name, value in vars(module).items():
            if name.startswith("gen_") and callable(value) and name not in found:
                try:
                    parameters = inspect.signature(value).parameters.values()
                except (TypeError, ValueError):
                    continue
                if all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
                    found[name] = value
    return sorted(found.items())


def spec_of(name: str, known: list[tuple[str, Callable[[], Any]]]) -> Any:
    """The spec with this name. Generators whose own names share most words with it are asked first; few are asked."""
    wanted = tokens(name)
    scored = sorted(known, key=lambda item: (-len(tokens(item[0]) & wanted), len(tokens(item[0]) - wanted)))
    for generator, make in scored[:12]:
        if not tokens(generator) & wanted:
            break
        try:
            spec = make()
        except Exception:
            continue
        if getattr(spec, "name", "") == name:
            return spec
    return None


def activation(name: str) -> Any:
    """silu_and_mul and its like take the text of their function."""
    jit = importlib.import_module("flashinfer.jit")
    texts = importlib.import_module("flashinfer.activation")
    kind, found, _ = name.partition("_and_mul")
    text = getattr(texts, kind + "_def_cu_str", None)
    return jit.gen_act_and_mul_module(kind, text) if found and text else None


def main(names: list[str]) -> int:
    """Build all; go on after a failure. Ends with 1 when one failed."""
    version = importlib.import_module("flashinfer").__version__
    jit = importlib.import_module("flashinfer.jit")
    say(event="import", version=version)
    known = generators(jit)
    worst = 0
    for name in names:
        say(event="start", module=name)
        spec = spec_of(name, known)
        if spec is None:
            try:
                spec = activation(name)
            except Exception:
                spec = None
        if spec is None:
            say(event="unknown", module=name)
            worst = 1
            continue
        if getattr(spec, "is_aot", False):
            say(event="masked", module=name)
            continue
        try:
            spec.build(True, need_lock=True)
        except Exception as error:
            say(event="failed", module=name, message=type(error).__name__ + ": " + str(error)[:2000])
            worst = 1
        else:
            say(event="done", module=name)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
