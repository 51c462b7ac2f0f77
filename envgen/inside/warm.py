"""Runs in a container's own Python: FlashInfer builds the modules named in argv.

FlashInfer's own generators and build run under its own lock, so the result is that of a first use.
ninja's output goes to stdout; lines that start with MARK are envgen's.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MARK = "\x01envgen "
GATE = "/opt/envgen/bin/compile-gate"

# Parameters of generators in the names of attention modules.
SPELLED = {
    "dtype_q": r"dtype_q_([a-z0-9]+)_",
    "dtype_kv": r"dtype_kv_([a-z0-9]+(?:_e2m1)?)_",
    "dtype_o": r"dtype_o_([a-z0-9]+)_",
    "dtype_idx": r"dtype_idx_([a-z0-9]+)_",
    "head_dim_qk": r"head_dim_qk_(\d+)",
    "head_dim_vo": r"head_dim_vo_(\d+)",
    "head_dim_ckv": r"head_dim_ckv_(\d+)",
    "head_dim_kpe": r"head_dim_kpe_(\d+)",
    "pos_encoding_mode": r"posenc_(\d+)",
    "use_sliding_window": r"use_swa_(True|False)",
    "use_logits_soft_cap": r"use_logits_cap_(True|False)",
    "use_fp16_qk_reduction": r"f16qk_(True|False)",
    "use_profiler": r"profiler_(True|False)",
}


def say(**words: object) -> None:
    """One line for the host."""
    sys.stdout.write(f"{MARK}{json.dumps(words)}\n")
    sys.stdout.flush()


def tokens(name: str) -> set[str]:
    """The words of a name; sm120 counts as 120."""
    parts = {
        part[2:] if part.startswith("sm") and part[2:].isdigit() else part
        for part in name.split("_")
    }
    return parts - {"", "gen", "module"}


def generators(jit: types.ModuleType) -> list[tuple[str, Callable[[], Any]]]:
    """All functions of flashinfer.jit that create a module without arguments."""
    makers = {}
    for info in pkgutil.walk_packages(jit.__path__, f"{jit.__name__}."):
        try:
            module = importlib.import_module(info.name)
        except Exception:
            continue  # it can't be built here, either
        for name, value in vars(module).items():
            if name.startswith("gen_") and callable(value) and name not in makers:
                try:
                    parameters = inspect.signature(value).parameters.values()
                except (TypeError, ValueError):
                    continue
                if all(
                    p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
                    for p in parameters
                ):
                    makers[name] = value
    return sorted(makers.items())


def spec_of(name: str, known: list[tuple[str, Callable[[], Any]]]) -> Any:
    """The spec with this name, from the 12 generators whose names share most words with it; None
    without one.
    """
    wanted = tokens(name)

    def distance(item: tuple[str, Any]) -> tuple[int, int]:
        own = tokens(item[0])
        return -len(own & wanted), len(own - wanted)

    for generator, make in sorted(known, key=distance)[:12]:
        if not tokens(generator) & wanted:
            break
        try:
            spec = make()
        except Exception:
            if tokens(generator) == wanted:  # it is not for this GPU; others may ask the network
                return None
            continue
        if getattr(spec, "name", "") == name:
            return spec
    return None


def arguments(name: str, dtypes: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an attention module, from its name."""
    # Names of attention with sinks leave out the encoding, which is always none there.
    values = {
        "backend": "fa3" if name.endswith("_sm90") else "fa2",
        "pos_encoding_mode": 0,
    }
    for parameter, pattern in SPELLED.items():
        match = re.search(pattern, name)
        if match is None:
            continue
        text = match.group(1)
        if parameter.startswith("dtype_"):
            if text not in dtypes:
                return {}
            values[parameter] = dtypes[text]
        else:
            values[parameter] = text == "True" if text in ("True", "False") else int(text)
    return values


def attention(name: str) -> Any:
    """The spec of an attention module, from the generator that gives it this name."""
    modules = importlib.import_module("flashinfer.jit.attention.modules")
    spelled = importlib.import_module("flashinfer.jit.utils").filename_safe_dtype_map
    values = arguments(name, {text: dtype for dtype, text in spelled.items()})
    for attribute, spell in sorted(vars(modules).items()):
        match = re.match(r"get_(\w+)_uri$", attribute)
        make = getattr(modules, f"gen_{match.group(1)}_module", None) if match else None
        if make is None or not all(p in values for p in inspect.signature(spell).parameters):
            continue
        try:
            if spell(**{p: values[p] for p in inspect.signature(spell).parameters}) == name:
                return make(
                    **{p: values[p] for p in inspect.signature(make).parameters if p in values}
                )
        except Exception:
            continue
    return None


def main(names: list[str]) -> int:
    """Build all modules, also after a failure. Returns 1 if one failed."""
    # The gate starts compilers when their memory is free. An image of an older envgen has none.
    gated = os.access(GATE, os.X_OK)
    os.environ["MAX_JOBS"] = os.environ.get("MAX_JOBS") or ("128" if gated else "2")
    if not gated:
        return build(names)
    with subprocess.Popen(
        [GATE, "watch", "5"]
    ) as watch:  # prints compilers that run and wait, on changes
        try:
            return build(names)
        finally:
            watch.terminate()


def build(names: list[str]) -> int:
    """One module after the other."""
    version = importlib.import_module("flashinfer").__version__
    jit = importlib.import_module("flashinfer.jit")
    say(event="import", version=version)
    known = generators(jit)
    worst = 0
    for name in names:
        say(event="start", module=name)
        spec = spec_of(name, known)
        if spec is None:
            with suppress(Exception):
                spec = attention(name)
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
            say(event="failed", module=name, message=f"{type(error).__name__}: {str(error)[:2000]}")
            worst = 1
        else:
            say(event="done", module=name)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
