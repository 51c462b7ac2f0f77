"""The head of a patch: fields in the manner of DEP-3 above the diff. ``Applies-To`` says which versions it is for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envgen.errors import Place, Problem, ProjectError

_FIELD = re.compile(r"([A-Z][A-Za-z-]*):[ \t]*(.*)")
_DIFF = ("diff --git ", "--- ", "Index: ")
_LONGEST = 64 << 10
# v0.14.0, 0.6.18.post1: a tag that is the number of a release.
_RELEASE_TAG = re.compile(r"(?:refs/tags/)?v?([0-9]+(?:\.[0-9]+)+(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*)")


@dataclass(frozen=True)
class Header:
    """The fields in order; a value's lines are joined by newlines."""

    fields: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """The first field of that name, or nothing."""
        return next((value for key, value in self.fields if key.lower() == name.lower()), "")

    @property
    def title(self) -> str:
        """The first line of the description."""
        return self.get("Description").split("\n", 1)[0] or self.get("Subject")

    @property
    def applies_to(self) -> str:
        """The version range, such as ``>=0.13.0, <0.17``; empty: every version."""
        return " ".join(self.get("Applies-To").split())


def head_of(content: bytes) -> bytes:
    """What stands above the diff, newline included."""
    end = 0
    for line in content[:_LONGEST].splitlines(keepends=True):
        if line.decode("utf-8", "replace").startswith(_DIFF):
            break
        end += len(line)
    return content[:end]


def read_header(content: bytes, file: str) -> Header:
    """Read a patch's fields. Raises ``ProjectError`` when ``Applies-To`` is not a version range."""
    fields: list[tuple[str, str]] = []
    for number, line in enumerate(head_of(content).decode("utf-8", "replace").splitlines(), 1):
        match = _FIELD.fullmatch(line)
        if match:
            fields.append((match[1], match[2].strip()))
            if match[1].lower() == "applies-to":
                _check_range(match[2], Place(file, number, 1, text=line))
        elif fields and line.startswith((" ", "\t")):
            name, value = fields[-1]
            fields[-1] = (name, f"{value}\n{'' if line.strip() == '.' else line.strip()}")
    return Header(tuple(fields))


def _check_range(text: str, place: Place) -> None:
    # Imported here, as in `in_range`: most renders need no version at all.
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        hint = "as in: Applies-To: >=0.13.0, <0.17"
        raise ProjectError([Problem(f"{text.strip()!r} is not a range of versions", place, hint)]) from None


def in_range(applies_to: str, version: str) -> bool:
    """Whether a patch is for this version. An unknown version (a branch, a commit) is taken to be in range."""
    if not applies_to or not version:
        return True
    try:
        return SpecifierSet(applies_to).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def version_of_ref(ref: str) -> str:
    """The version that a git tag names (``v0.14.0`` -> ``0.14.0``), or nothing for a branch or commit."""
    match = _RELEASE_TAG.fullmatch(ref)
    return match[1] if match else ""
