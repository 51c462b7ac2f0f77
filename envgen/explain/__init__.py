"""Rules that find the cause of a failure in a log of a build, of the JIT or of a server.

The rules are data (``rules/*.yaml``), each with an excerpt of a real log. This package imports only
``text`` and ``redact``. Keys of a rule, beside its texts:

``match``    a line that matches one of these patterns; the named groups of an expression are facts
``except``   a line with one of these texts does not match
``beside``   the rule holds only if another line of the log matches one of these patterns, too
``facts``    NAME: an expression with one group, which is searched in the whole log
``request``  of one request: the server goes on, and if it ends, it does not end of this
``general``  said only where no other failure explains the log: it may be the consequence of one
             (`last`: and no other general one)
``weak``     a notice, unless something else shows that the program failed
``mild``     of a failure that is logged below an error (INFO, WARNING)
``kinds``    of logs: build, serve; a log that begins as a build's is one
``in``       PHASE: its own ``cause`` or ``cure`` in that phase; a part of the name of a phase in phases.yaml

A rule of a failure matches no line that was logged below an error: notices, weak and mild rules do.
In ``cause`` and ``cure``, ``[[ text with {fact} ]]`` is left out where a fact is missing; ``{feature}``
is the part of the program that ran, ``{without}`` what rules it out (phases.yaml).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from envgen.explain.first import is_consequence
from envgen.explain.line import MILD, is_source, read_line, search_for
from envgen.redact import redact_secrets, secret_like
from envgen.text import shorten

_FACT = re.compile(r"\{([a-z_]+)\}")
BETWEEN = ".{0,4000}?"  # for `*`
_OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def filled(text: str, facts: Mapping[str, str] = {}) -> str:
    """A rule's text: each ``[[part]]`` with its facts, or without the part where one of them is
    missing.
    """

    def fact(name: re.Match[str]) -> str:
        return shorten(facts[name[1]].strip().partition(" [type=")[0], 400)

    def part(optional: re.Match[str]) -> str:
        known = all(map(facts.get, _FACT.findall(optional[1])))
        return _FACT.sub(fact, optional[1]) if known else ""

    return _OPTIONAL.sub(part, text)


@dataclass(frozen=True)
class RulePattern:
    """``has``: text in every matching line, in lower case; a line with it must match ``text``."""

    has: str
    text: str

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Compiled where it is needed: a command reads few of the lines that the rules know."""
        return re.compile(self.text, re.I)


def read_pattern(node: Any) -> RulePattern:
    """An entry of a rule's ``match``: a text with `*` for anything, or ``{re: EXPRESSION, has:
    TEXT}``.
    """
    if isinstance(node, str):
        parts = tuple(part for part in node.lower().split("*") if part)
        return RulePattern(max(parts, key=len), BETWEEN.join(map(re.escape, parts)))
    return RulePattern(str(node["has"]).lower(), str(node["re"]))


FOLDER = Path(__file__).parent / "rules"
# In this order: an early warning about the network must not hide a kernel that failed later.
FILES = (
    "gpu.yaml",
    "jit.yaml",
    "cluster.yaml",
    "serve.yaml",
    "host.yaml",
    "launchers.yaml",
    "build.yaml",
    "kinds.yaml",
    "requests.yaml",
    "raised.yaml",
    "notices.yaml",
)
NOTICES = FILES[-1:]  # read in a tenth of the time
KINDS = ("build", "serve")


@dataclass(frozen=True)
class Rule:
    """One known failure. ``example``: lines of a real log."""

    rule: str
    kinds: Collection[str]
    cause: str
    cure: str
    link: str
    patterns: tuple[RulePattern, ...]
    example: str
    codes: Collection[int] = ()  # exit codes that prove it without a log line
    notice: bool = False  # not a failure
    quoted: bool = False  # the example comes from the public thread at ``link``
    never: tuple[str, ...] = ()  # `except`
    beside: tuple[RulePattern, ...] = ()
    facts: Mapping[str, RulePattern] = field(default_factory=dict)
    general: int = 0  # 1, or 2 for `last`
    weak: bool = False
    mild: bool = False
    phases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # `in`
    request: bool = False

    @cached_property
    def words(self) -> frozenset[str]:
        """A log with none of these has no line that matches."""
        return frozenset(pattern.has for pattern in self.patterns)

    def texts(self, phase: str) -> tuple[str, str]:
        """Cause and cure, for a failure in this phase ("": unknown)."""
        own = next((texts for name, texts in self.phases.items() if name in phase), {})
        return own.get("cause", self.cause), own.get("cure", self.cure)


@dataclass(frozen=True)
class LogPhase:
    """What a program was doing. ``cause`` and ``cure``: of an exception there that no rule knows: a guess. "": none.

    ``feature``: this part of the program in words, ``without``: what rules it out; rules have both in their
    texts as facts. ``inside``: what fails in code that it calls is its own failure, too. ``own``: to leave out
    what this log sets, which is a fact, too.
    """

    phase: str
    signs: Sequence[str]
    cause: str = ""
    cure: str = ""
    link: str = ""
    without: str = ""
    feature: str = ""
    inside: bool = False
    own: str = ""


@cache
def phases() -> tuple[LogPhase, ...]:
    """All phases, outer ones first."""
    return tuple(LogPhase(**node) for node in load_yaml("phases.yaml"))


@cache
def unusual() -> tuple[str, ...]:
    """Settings that take another way through a server's code, the likeliest to be at fault first."""
    return tuple(load_yaml("unusual.yaml"))


@cache
def programs() -> tuple[Mapping[str, Any], ...]:
    """Other servers than vLLM: their signs in a log, and their words for those of vLLM."""
    return tuple(load_yaml("programs.yaml"))


def load_yaml(name: str) -> Any:
    """The data of a file of this package."""
    return yaml.load(
        (FOLDER.parent / name).read_text("utf-8"),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    )


@cache
def _rules_of(name: str) -> tuple[Rule, ...]:
    return tuple(map(read_rule, load_yaml(f"rules/{name}")))


def rules(files: Sequence[str] = FILES) -> tuple[Rule, ...]:
    """All rules of these files, in order."""
    return tuple(rule for name in files for rule in _rules_of(name))


def read_rule(node: Mapping[str, Any]) -> Rule:
    """A rule from its YAML node."""
    patterns, beside = (tuple(map(read_pattern, node.get(key, ()))) for key in ("match", "beside"))
    values = {key: value for key, value in node.items() if key not in ("match", "except", "in")}
    values |= {
        "kinds": node.get("kinds", KINDS),
        "patterns": patterns,
        "never": tuple(text.lower() for text in node.get("except", ())),
        "beside": beside,
        "facts": {name: read_pattern(entry) for name, entry in node.get("facts", {}).items()},
        "general": 1 + (node.get("general") == "last") if {"general", "request"} & {*node} else 0,
        "phases": node.get("in", {}),
    }
    return Rule(**values)


def rules_for(kind: str | None, files: Sequence[str] = FILES) -> tuple[Rule, ...]:
    """The rules for logs of ``kind`` (one of KINDS); None: all."""
    return tuple(rule for rule in rules(files) if not kind or kind in rule.kinds)


GOES_ON = "0123456789abcdefghijklmnopqrstuvwxyz"  # begins what is no sentence of its own
LONGEST = 1 << 20  # the rest of a longer line is ignored
SHOWN = 400  # characters of a line that are shown as evidence


@dataclass(frozen=True)
class Explanation:
    """A rule that matched. ``rule``: its stable name; ``line``: from 1 (0: none); ``failure``:
    False for a notice.

    ``general``: it may be the consequence of something else.
    """

    rule: str
    cause: str
    evidence: str
    line: int
    cure: str
    link: str
    failure: bool = True
    general: bool = False
    phase: str = ""  # "": unknown

    @property
    def said(self) -> str:
        """The cause; a likely one is called so."""
        return f"likely: {self.cause}" if self.general else self.cause


@dataclass(frozen=True)
class Circumstances:
    """What is known of a failure beside its log.

    ``failed``: False if nothing but the log says so. ``facts`` fill the rules' texts: `memory`,
    `raise`, `cuda`, `mounted`, ...
    """

    failed: bool = False
    exit_code: int | None = None
    oom_killed: bool = False  # Docker's flag of the container
    facts: Mapping[str, str] = field(default_factory=dict)


UNKNOWN = Circumstances()
# A line of a build: BuildKit numbers its steps.
_OF_BUILD = re.compile(
    r"^(?:#\d{1,4} (?:\[|DONE|CACHED|\d{1,6}\.\d )|[$#] (?:sudo )?docker (?:buildx|build) )|"
    r"ERROR: failed to (?:build|solve): |^failed to solve: ",
    re.MULTILINE,
)
BEGINNING = 2000  # lines, in which a build shows what it is
# Lines that name a server's settings: vLLM prints those that are set, and a command line has flags,
# one on each line where it is long.
SETS = ("non-default args: {", " --")
_SETS = re.compile(
    r"[ ]*(?:- ?)?[\"']?--[a-z]|.*(?:vllm serve|launch_server|api_server|non-default args:) ", re.I
)
_SETTING = re.compile(
    r"(?:'|--)(?P<name>[a-z]{1,20}(?:[_-][a-z0-9]{1,20}){0,8})\b(?:': |[\"']?(?:[=,]| (?!-)) ?[\"']?)?"
    r"(?P<value>\{[^{}]{0,200}\}|\[[^\]]{0,200}\]|\w+\([^)]{0,4000}\)|'[^']{0,200}'|[^\s,}\"'\\-][^\s,}\"'\\]{0,200}|)"
)


_DEFAULT = re.compile("|auto|vllm|1|0|[Ff]alse|None|null")
_FIELD = re.compile(r"\w[\w.-]{1,80}\s*$")


class _Text:
    """A log whose lines are found by the words in them: RE2 looks for those of all rules at once."""

    def __init__(
        self, lines: Iterable[str], outlived: Collection[int], files: Sequence[str] = FILES
    ) -> None:
        self.lines = [line.rstrip("\r\n")[:LONGEST].replace("\n", " ") for line in lines]
        self.of_build = _OF_BUILD.search("\n".join(self.lines[:BEGINNING] + self.lines[-20:]))
        self._numbers = defaultdict[str, list[int]](list)
        self._known = dict[int, tuple[str, str, bool]]()  # the last: whether it is no failure
        matcher, words, signs = _matcher(files)
        seen = set[tuple[bool, str]]()
        for number, line in enumerate(self.lines):
            after = ""
            if "Error: " in line:  # its message may be wrapped
                after = read_line("".join(self.lines[number + 1 : number + 2]))[2].strip()
                after *= after[:1] in GOES_ON
            low = f"{line} {after}".lower()
            if not (has := matcher.Match(low.encode("utf-8", "replace"))):
                continue
            _, level, text = read_line(line)
            if "[type=" in text:  # pydantic's: the line above has the name of the field
                above = "".join(self.lines[number - 1 : number])
                text = f"{above.strip()}: {text.strip()}" if _FIELD.match(above) else text
            key = (number in outlived, text)
            if new := key not in seen and not is_source(text):  # else it says no more
                seen.add(key)
                self._known[number] = (text, after, level in MILD or number in outlived)
            for index in has:
                if new or index < signs:
                    self._numbers[words[index]].append(number)
        self.words = frozenset(self._numbers)
        self.raised = -1  # the index of the first exception

    def phase(self, number: int) -> LogPhase:
        """The phase whose sign stands last up to the line with this index; else the first,
        which has no name.
        """
        last = -1
        found, *known = phases()
        for phase in known:
            for sign in phase.signs:
                numbers = self._numbers[sign]
                index = bisect_right(numbers, number)
                if index and numbers[index - 1] >= last and phase.inside >= found.inside:
                    last = numbers[index - 1]
                    found = phase
        rare = [": ".join(item) for item in self.settings.items() if item[0] in unusual()]
        if not rare or "request" in found.without:
            return found
        own = f"without, one by one, what this log sets ({', '.join(rare)})"
        without, cure = (text and f"{own}; else {text}" for text in (found.without, found.cure))
        return replace(found, own=own, without=without or own, cure=cure)

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings that the log shows, each with its value, unusual() ones in their order; none
        that may be secret.
        """
        found = dict.fromkeys(unusual(), "")
        for number in chain.from_iterable(self._numbers.get(sign, ()) for sign in SETS):
            line = self.lines[number][: 1 << 16]
            if not _SETS.match(line):
                continue
            for name, value in _SETTING.findall(line):
                known = name.replace("_", "-")
                if not secret_like(name) and (known in found or "-" in known):
                    found[known] = shorten(redact_secrets(value).strip("'"), 80) or "true"
        return {name: value for name, value in found.items() if not _DEFAULT.fullmatch(value)}

    def worded(self, one: Explanation) -> Explanation:
        """The same in the words of the server whose log it is, with what is set there of the
        settings that the fix names.
        """
        for program in programs():
            if any(map(self._numbers.get, program["signs"])):
                for word, own in program["words"].items():
                    # "vLLM 0.28" stays: another server's 0.28 is not what was fixed.
                    words = re.compile(re.escape(word) + r"(?! v?\d)")
                    one = replace(
                        one, cause=words.sub(own, one.cause), cure=words.sub(own, one.cure)
                    )
        named = re.findall(r"[a-z][a-z0-9-]+", one.cure)
        is_set = [": ".join(item) for item in self.settings.items() if item[0] in named]
        is_set = [setting for setting in is_set if setting not in one.cure]
        if is_set:
            one = replace(one, cure=f"{one.cure} (set in this log: {', '.join(is_set)})")
        return one

    def search(
        self, pattern: RulePattern, never: Sequence[str] = (), strict: bool = False
    ) -> tuple[int, str, dict[str, str]] | None:
        """The first line that matches, or the exception's: its index, its text, and the named groups.

        ``strict``: not one that was logged below an error, or that the program outlived.
        """
        numbers = self._numbers.get(pattern.has, ())
        for number in chain((self.raised,) if numbers else (), numbers):
            text, after, mild = self._known.get(number, ("", "", True))
            if strict and mild:
                continue
            match = pattern.expression.search(text)
            if after and not match:
                match = pattern.expression.search(f"{text} {after}")
            if not match or any(words in text.lower() for words in never):
                continue
            line = self.lines[number]
            return (
                number,
                _around(line, len(line) - len(text) + match.start()),
                {name: value for name, value in match.groupdict().items() if value},
            )
        return None


def _around(line: str, place: int) -> str:
    """A line, or the part of a long one around ``place``."""
    first = max(0, min(place - 60, len(line) - SHOWN))
    return line[first : first + SHOWN].strip()


@cache
def _matcher(files: Sequence[str]) -> tuple[Any, tuple[str, ...], int]:
    """A search for the words that matching lines have, all at once; these words, and how many of
    them are signs, which count in every line.
    """
    patterns = [
        pattern
        for rule in rules(files)
        for pattern in (*rule.patterns, *rule.beside, *rule.facts.values())
    ]
    signs = [sign for phase in phases() for sign in phase.signs]
    signs += [*SETS, *(sign for program in programs() for sign in program["signs"])]
    words = tuple(dict.fromkeys([*signs, *(pattern.has for pattern in patterns)]))
    return search_for(words), words, len({*signs})


def _matches(
    log: _Text, rules: Iterable[Rule], known: Circumstances, before: int
) -> Iterator[tuple[Rule, str, int, dict[str, str]]]:
    """Each rule that matches, with the line, its number and the facts."""
    for rule in rules:
        if rule.words.isdisjoint(log.words):
            continue
        least = (True, len(log.lines))  # the first exception's line comes before others
        facts = dict[str, str]()
        for pattern in rule.patterns:
            match = log.search(pattern, rule.never, not (rule.notice or rule.weak or rule.mild))
            if match and (order := (match[0] != log.raised, match[0])) < least:
                least = order
                evidence = match[1]
                facts |= match[2]
        number = least[1]
        if number == len(log.lines) or (rule.beside and not any(map(log.search, rule.beside))):
            continue
        for name, pattern in rule.facts.items():
            if name not in facts and (match := log.search(pattern)):
                facts |= match[2]
        yield rule, evidence, before + number + 1, {**known.facts, **facts}


def classify(
    lines: Iterable[str],
    *,
    kind: str | None = None,
    known: Circumstances = UNKNOWN,
    before: int = 0,
    outlived: Collection[int] = (),
    first: tuple[int, str] | None = None,
    last: int = 0,
    files: Sequence[str] = FILES,
) -> tuple[Explanation, ...]:
    """The known causes in a log: failures before notices, what explains the first exception before
    others, then in the rules' order. Each rule matches once, at that exception or its first line.

    ``kind``: build or serve; None: all rules. ``before``: the number of lines before these, which
    may have their ends.
    ``outlived``: the indices of lines that tell of no failure: the program went on after them.
    ``first``: line and text of the first exception, for which a phase answers if no rule does.
    ``last``: the line of the last one; 0 for none. Nothing is certain where a rule explains only
    one of the two: the program may have gone on after the first.
    """
    log = _Text(lines, outlived, files)
    raised, text = first or (0, "")
    log.raised = raised - before - 1
    possible = rules_for(kind or ("build" if log.of_build else None), files)
    rows = list(_matches(log, possible, known, before))
    failures = [rule.general for rule, *_ in rows if not rule.notice and not rule.weak]
    sound = not failures and not known.failed
    surest = min(failures, default=2)
    taken = set[int]()
    shown = list[Explanation]()
    for rule, evidence, line, facts in rows:
        if (
            line not in taken and rule.general <= surest
        ):  # what is surer explains the line, or the log
            taken.add(line)
            failure = not (rule.notice or (rule.weak and sound))
            during = log.phase(line - before - 1)
            facts = {**vars(during), **facts}
            shown.append(_explanation(rule, evidence, line, facts, failure, during.phase))
    # What stands elsewhere than an exception that no rule knows may be noise, or its consequence.
    known_lines = {
        line + offset
        for rule, evidence, line, _ in rows
        if rule.general < 2 and not is_consequence(evidence)
        for offset in range(-5, 1)
    }
    if re.search(r"\wError", text) and not {raised, last or raised} <= known_lines:
        shown = [replace(one, general=one.failure) for one in shown]
    # What may be a consequence, and stands below the exception and its message, does not explain it.
    explained = any(one.failure and (not one.general or one.line < raised + 3) for one in shown)
    if text and raised not in taken and not explained:
        during = log.phase(raised - before - 1)
        if during.link and (during.phase or during.own):
            shown.append(_of_phase(during, raised, text))
    shown.sort(key=lambda one: (not one.failure, one.line != raised))
    return tuple(map(log.worded, shown))


def _explanation(
    rule: Rule,
    evidence: str,
    line: int,
    facts: Mapping[str, str],
    failure: bool = True,
    phase: str = "",
) -> Explanation:
    cause, cure = rule.texts(phase)
    return Explanation(
        rule.rule,
        filled(cause, facts),
        evidence,
        line,
        filled(cure, facts),
        rule.link,
        failure,
        rule.general > 0,
        phase,
    )


def _of_phase(phase: LogPhase, line: int, text: str) -> Explanation:
    """An exception that no rule knows, in its own words; what most often goes wrong in its phase."""
    cause = phase.cause or (
        f"most often a defect of this release in {phase.feature}, else what that was given: a "
        "setting, a variable, a file"
    )
    return Explanation(
        "unknown",
        f"{cause} (no rule knows this exception: {text.strip()})",
        text,
        line,
        phase.cure or f"{phase.without}; else a newer release, or the one before",
        phase.link,
        general=True,
        phase=phase.phase,
    )


def likeliest(
    matched: Iterable[Explanation], known: Circumstances, *, kind: str
) -> Explanation | None:
    """The cause: what the first rule of a failure that ``matched`` says, or what the exit code or
    Docker proves; None if nothing does.
    """
    possible = {rule.rule: rule for rule in rules_for(kind) if not rule.request}
    failures = [one for one in matched if one.failure and one.rule in possible]
    proven = [rule for rule in possible.values() if known.exit_code in rule.codes]
    evidence = f"exit code {known.exit_code}"
    if known.oom_killed:  # whatever else the log says
        failures = [one for one in failures if "memory" in one.rule]
        proven = [possible["server_memory" if kind == "serve" else "out_of_memory"]]
        evidence = "Docker reports that it was killed because memory ran out"
    failures += [_explanation(rule, evidence, 0, known.facts) for rule in proven]
    return failures[0] if failures else None
