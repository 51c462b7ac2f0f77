"""Runs in a release's Python (import_vllm.py was run before): the flags of its parser, and what it reads back.

After a line with envgen's folder, one line of JSON in, one out: {} asks for the flags;
{"words": ..., "wanted": {flag: value}} for those that differ.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
import typing
from typing import Any

sys.path.insert(0, sys.stdin.readline().strip())  # the folder with envgen
serve_parser = importlib.import_module("envgen.inside.predict.config").serve_parser

LIMIT = 12  # fields of a configuration that are tried


def kind_of(action: Any, type_: Any) -> Any:
    """``bool``, ``text``, ``int``, ``float``, ``json``, ``either`` (JSON or text), {field: kind}, or None: unknown."""
    name = getattr(type_, "__qualname__", "")
    if name.endswith(("_optional_type", "_parse_type")):
        inner = next(cell.cell_contents for cell in type_.__closure__ if callable(cell.cell_contents))
        return kind_of(action, inner)
    if name.endswith("parse_dataclass"):
        return {"fields": fields_of(type_.__defaults__[0])}
    kinds = {str: "text", int: "int", float: "float", json.loads: "json", None: "text"}
    if name == "union_dict_and_str":
        return "either"
    return "int" if name.startswith("human_readable_int") else kinds.get(type_)


def fields_of(cls: Any) -> dict[str, Any]:
    simple = {bool: "bool", str: "text", int: "int", float: "float"}
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for one in dataclasses.fields(cls):
        options = typing.get_args(hints[one.name]) or (hints[one.name],)
        kind = next((simple[each] for each in options if each in simple), None)
        if kind and len(found) < LIMIT:
            found[one.name] = kind
    return found


def optional(type_: Any) -> bool:
    return getattr(type_, "__qualname__", "").endswith("_optional_type")


_, parser = serve_parser()
flags: dict[str, Any] = {}
for action in parser._actions:
    names = [one[2:] for one in action.option_strings if one.startswith("--")]
    if not names or names[0] in ("help", "config", "model") or action.dest in {one.dest for one, _ in flags.values()}:
        continue
    kind = "bool" if action.nargs == 0 else kind_of(action, action.type)
    if type(action).__name__ in ("_StoreAction", "_AppendAction") or action.nargs == 0:
        flags[names[0]] = (action, kind)


def described(name: str) -> dict[str, Any]:
    action, kind = flags[name]
    several = action.nargs == "+" or type(action).__name__ == "_AppendAction"
    choices = [str(one) for one in action.choices if str(one) != "None"] if action.choices else None
    return {"kind": kind, "several": several, "choices": choices, "bare": action.nargs == "?",
            "short": [one[1:] for one in action.option_strings if not one.startswith("--")]}  # fmt: skip


def wanted(name: str, value: Any) -> Any:
    action, kind = flags[name]
    if isinstance(kind, dict):
        return action.type(json.dumps(value))
    if optional(action.type) and not isinstance(value, list) and value in ("", "None"):
        return None
    if optional(action.type) and isinstance(value, list):
        return [None if one in ("", "None") else one for one in value]
    return value


def differs(request: Any) -> Any:
    expected = {}
    for name, value in request["wanted"].items():
        try:
            expected[name] = wanted(name, value)
        except Exception:
            return {"invalid": name}  # a value that the release's own type refuses
    try:
        args = parser.parse_args(request["words"])
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}
    got = {name: getattr(args, flags[name][0].dest) for name in expected}
    rows = [[name, shown(got[name]), shown(one)] for name, one in expected.items()]
    return {"differ": [one for one in rows if one[1] != one[2]]}


def shown(value: Any) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "an id", repr(value))  # some draw one


def refuse(message: str) -> Any:
    raise ValueError(message)


parser.error = refuse
out, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    asked = json.loads(line)
    answer = differs(asked) if asked else {one: described(one) for one in flags}
    print("\n=>", json.dumps(answer), file=out, flush=True)  # a release's log may be on the same stream
