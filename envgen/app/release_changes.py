"""What differs between two releases of a source, of that which a profile uses: flags, variables, lines of the log.

Both are read as text and by `ast`; nothing of them is imported or run.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen import files
from envgen.app.session import Session
from envgen.doctor import collect
from envgen.doctor.expectation import compose_env
from envgen.errors import Place, Problem
from envgen.explain.rulebase import rules_for
from envgen.inside.probe import sources as probe
from envgen.patches.trees import GitTree, Tree, put
from envgen.profile.tree import MAP, Node
from envgen.serve.phases import LINES


@dataclass(frozen=True)
class Finding(Problem):
    """Something to know before the release is changed. ``stops``: with it, a build or a start would fail."""

    stops: bool = False


@dataclass(frozen=True)
class Use:
    """A flag, a variable or a log pattern, and where the project has it from."""

    kind: str
    name: str
    place: Place | None


def at(tree: Node, *keys: str) -> Node | None:
    """The value below ``keys``; dashes and underscores are the same, as in vLLM's flags."""
    node: Node | None = tree
    for key in keys:
        items = node.items if node is not None and node.kind == MAP else {}
        node = items.get(key) or next((v for k, v in items.items() if k.replace("_", "-") == key), None)
    return node


def uses(session: Session, package: str) -> list[Use]:
    """What services of the profile, and of its variants, use of a package's release."""
    profile, found = session.profile(), dict[tuple[str, str], Use]()

    def add(kind: str, name: str, *nodes: Node | None) -> None:
        node = next((one for one in nodes if one is not None), None)
        found.setdefault((kind, name), Use(kind, name, node.key_place() if node is not None else None))

    for variant in ("", *profile.variants):
        one = Session(session.file, profile.name, session.sets, variant)
        varied, tree = one.profile(), one.loaded().trees[profile.name]
        for service, described in varied.services.items():
            here = ("services", service)
            for name in compose_env(varied, service):
                if name.startswith(f"{package.upper()}_"):
                    groups = (at(tree, "env", group, name) for group in reversed(list(varied.env)))
                    add("variable", name, at(tree, *here, "env", name), *groups)
            if package != "vllm" or not collect.is_server(described):
                continue
            for flag in collect.flags(varied, service):
                add("flag", flag, at(tree, *here, "args", flag.lstrip("-")), at(tree, *here, "command"))
            for kind in ("expect", "forbid") if described.ready else ():
                for name, pattern in getattr(described.ready, kind).items():
                    add("pattern", pattern, at(tree, *here, "ready", kind, name))
    return list(found.values())


def compare(old: Tree, new: Tree, package: str, used: Sequence[Use]) -> list[Finding]:
    """What of ``used`` the new release treats in another way than the old one."""
    if not used:
        return []
    for tree in (old, new):
        if isinstance(tree, GitTree):  # which fetches each file by itself
            what = "flags, variables, log lines and requirements are not compared"
            return [Finding(f"{what}: the package index does not have {tree.label}")]
    with files.Scratch("upgrade") as scratch, ThreadPoolExecutor(2) as pool:
        folders = [Path(scratch, side) for side in ("old", "new")]
        before, after = texts = list(pool.map(lambda tree, folder: _unpack(tree, folder, package), (old, new), folders))
        if not all(texts):
            bare = (old, new)[texts.index({})].label
            return [Finding(f"flags, variables and log lines are not compared: {bare} has no folder {package}")]
        places = [str(folder / package) for folder in folders]
        found = _variables(package, places, new.label, [one for one in used if one.kind == "variable"])
        if package == "vllm":
            found += _flags(places, new.label, [one for one in used if one.kind == "flag"])
            found += _log(_messages(before), _messages(after), old.label, new.label, used)
    return found


# Of a path in an archive: no dots but the last, so it stays where it is unpacked.
_MODULE = re.compile(r"(?:\w[\w-]*/)+\w+\.py")


def _unpack(tree: Tree, folder: Path, package: str) -> dict[str, str]:
    """The Python files of a package, put below ``folder``; their texts."""
    names = {one for one in tree.names() if one.startswith(f"{package}/") and _MODULE.fullmatch(one)}
    found = tree.read(names)
    put(folder, found)
    return {name: file.data.decode("utf-8", "replace") for name, file in found.items()}


def _variables(package: str, places: Sequence[str], label: str, used: Sequence[Use]) -> list[Finding]:
    names = [one.name for one in used]
    before, after = ({f["name"]: f for f in probe.package_variables(package, place, names)} for place in places)
    found = []
    for one in used:
        was, fact = before[one.name], after[one.name]
        if not fact["known"]:
            hint = f"it knows {' and '.join(fact['similar'])}" if fact["similar"] else "take it out"
            again = " any more" if was["known"] else ", as before"
            found.append(Finding(f"{label} does not read {one.name}{again}", one.place, hint))
        elif fact["note"] and not was["note"]:
            found.append(Finding(f"{label} on {one.name}: {fact['note']}", one.place))
    return found


def _flags(places: Sequence[str], label: str, used: Sequence[Use]) -> list[Finding]:
    judged = probe.judged_flags([one.name for one in used], places[1])
    if used and "unknown" not in judged:
        return [Finding(f"flags are not compared: {label} lists them in a way that is not known here")]
    unknown = {one["flag"]: one["similar"] for one in judged.get("unknown", ())}
    found, facts = [], list[dict[str, dict[str, Any]]]()
    for place in places:
        facts.append({one.name: {"name": one.name, "known": False, "assigned": [], "note": ""} for one in used})
        for path in probe.python_files(place):
            data = probe.read_bytes(path)
            if b"deprecated" in data and any(one.name.encode() in data for one in used):
                probe.look(path, data, facts[-1], path)
    for one in used:
        if one.name in unknown:
            near = " or ".join(unknown[one.name])
            hint = (
                f"did you mean {near}?" if near else f"services.X.args: {{{one.name.lstrip('-')}: null}} leaves it out"
            )
            found.append(Finding(f"{label} has no flag {one.name}", one.place, hint, stops=True))
        elif (note := facts[1][one.name]["note"]) and not facts[0][one.name]["note"]:
            found.append(Finding(f"{label} on {one.name}: {note}", one.place))
    return found


# --- the log ----------------------------------------------------------------------------------------------------------

# Strings that stand side by side, as Python joins them. vLLM is formatted with double quotes.
_STRINGS = re.compile(r'(?:[fFrR]{0,2}"(?:[^"\\\n]|\\.)+"\s*)+')
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)+)"')
# What is filled in: {...} and %s.
_FILLED = re.compile(r"\{[^{}]*\}|%(?:\(\w+\))?[-+ #0-9.]*[sdrfgixc]")


def _messages(texts: Mapping[str, str]) -> set[str]:
    return {"".join(_STRING.findall(one)) for text in texts.values() for one in _STRINGS.findall(text) if " " in one}


def _log(before: set[str], after: set[str], old: str, new: str, used: Iterable[Use]) -> list[Finding]:
    found = []
    wanted = [(one.name, one.place, "") for one in used if one.kind == "pattern"]
    for pattern, place, what in [*wanted, *((line, None, "a phase of the start: ") for line, *_ in LINES)]:
        (was, line), (now, near) = (max(_nearest(text, side) for text in samples(pattern)) for side in (before, after))
        if now < was and was >= 0.5:
            message = f"{what}{pattern!r} finds {line!r} of {old}, and nothing that {new} logs"
            found.append(Finding(message, place, f"the nearest there: {near!r}" if near else ""))
    there, then = ("\n".join(side).lower() for side in (before, after))
    phrases = {one.has: rule.rule for rule in rules_for("serve") for one in rule.patterns if " " in one.has}
    if lost := [f"{text!r} (rule {rule})" for text, rule in phrases.items() if text in there and text not in then]:
        found.append(Finding(f"`envgen explain` knows lines of {old} that {new} does not log: {', '.join(lost)}"))
    return found


def samples(pattern: str) -> list[str]:
    """Of each alternative of a regular expression the longest text that it certainly wants."""
    text = re.sub(r"\\(\W)", lambda found: chr(0xE000 + ord(found[1])), pattern)  # what is escaped is text
    before = ""
    while before != text:  # groups, from the inside out: the first alternative, nothing optional
        before = text
        text = re.sub(r"\((?:\?:)?([^()|]*)[^()]*\)([?*]|\{0)?", lambda found: "" if found[2] else found[1], text)
    special = re.compile(r"\\\w[+*?]*|\[[^\]]*\][+*?]*|\.?[+*?]+|\.|\{[^}]*\}|[$^]")
    longest = (max(special.split(one), key=len) for one in text.split("|"))
    return ["".join(chr(ord(c) - 0xE000) if 0xE000 < ord(c) < 0xE100 else c for c in one) for one in longest]


def _nearest(text: str, messages: Iterable[str]) -> tuple[float, str]:
    """Which message's lines may hold ``text``, and what part of it the message itself spells."""
    words = [word for word in re.findall(r"\w+", text) if len(word) > 3]
    shared = ((sum(word in one for word in words), -len(one), one) for one in messages)
    likely = [one for count, _, one in heapq.nlargest(100, shared) if count]
    best = max(likely, key=lambda message: _spelt(text, message), default="")
    return (_spelt(text, best) / len(text), best) if best else (0.0, "")


def _spelt(text: str, message: str) -> int:
    """How much of ``text`` a message spells where the text may be a part of its line; 0 where it can't be.

    Anything can stand where something is filled in. All places of the message are tried at once.
    """
    shape = [one for one in re.split(r"(\0)", _FILLED.sub("\0", message.replace('\\"', '"'))) if one]
    letters = [None if one == "\0" else letter for one in shape for letter in one]
    states = dict.fromkeys(range(len(letters)), 0)
    for wanted in text:
        reached: dict[int, int] = {}
        for place, count in states.items():
            if place < len(letters) and letters[place] in (None, wanted):
                step, more = (place, count) if letters[place] is None else (place + 1, count + 1)
                reached[step] = max(more, reached.get(step, 0))
                if letters[place] is None:
                    reached[place + 1] = max(count, reached.get(place + 1, 0))
        states = reached
    return max(states.values(), default=0)
