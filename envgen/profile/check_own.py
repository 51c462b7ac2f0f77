"""Checks on files of the project that a profile names for its image and for Compose."""

from __future__ import annotations

from pathlib import Path

from envgen import files
from envgen.profile.report import Report
from envgen.redact import secret_in
from envgen.text import forbidden_character

LARGEST = 1 << 20


def check(report: Report) -> None:
    """Note what is wrong with them."""
    profile = report.profile
    for place in ("base", "end"):
        for number, line in enumerate(getattr(profile.dockerfile_extra, place)):
            path = ("dockerfile_extra", place, str(number))
            for source in line.sources:
                report.in_project(path, source)
            if profile.reproducible:
                message = "reproducible can't hold for lines of your own: envgen does not know what they write"
                report.problem(path, message, "remove one of them")
    for name, encoding in profile.tiktoken.encodings.items():
        where = ("tiktoken", "encodings", name, "file")
        found = report.in_project(where, encoding.file.path) if encoding.file is not None else None
        if found is not None and found.is_dir():
            report.problem(where, f"{str(encoding.file)!r} is a folder", "name the file in it")
    if profile.compose is not None:
        file = report.in_project(("compose",), profile.compose.path)
        if file is not None:
            _compose(report, file)
    for name, source in report.sources("origin", "install"):
        if source.origin.folder is None:
            continue
        at = ("sources", name)
        folder = report.in_project((*at, "origin", "folder"), source.origin.folder.path)
        if folder is not None and not folder.is_dir():
            report.problem((*at, "origin", "folder"), f"{str(source.origin.folder)!r} is not a folder")
        if source.patches is not None:
            report.problem((*at, "patches"), "a folder of the project is not patched", "edit its files", at_key=True)
        if source.install.dependencies:
            message = "no index knows what a folder of the project depends on"
            report.problem((*at, "install", "dependencies"), message, "name its dependencies in pip.deps")


def _compose(report: Report, file: Path) -> None:
    """Text, of a size that a person writes, without secrets: it is committed like the project file."""
    path = ("compose",)
    try:
        text = files.read(file, limit=LARGEST).decode()
    except OSError as error:
        report.problem(path, f"{file.name!r} can't be read: {error.strerror}", "name a Compose file")
        return
    except UnicodeDecodeError:
        report.problem(path, f"{file.name!r} is not UTF-8 text", "name a Compose file")
        return
    for number, line in enumerate(text.splitlines(), 1):
        if forbidden_character(line.replace("\t", " ")):
            report.problem(path, f"line {number} of {file.name!r} has a control character", "remove it")
        elif kind := secret_in(line):
            hint = "write `secrets: [NAME]` in the profile, and ${NAME} there"
            report.problem(path, f"line {number} of {file.name!r} looks like a secret ({kind})", hint)
