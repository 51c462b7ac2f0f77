"""Reads what ``buildx build --progress=plain`` prints: the steps, and which one failed. Never fails on odd input."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

# Enough of a step's output to show and to classify; compilers write their reason long before they end.
KEPT_LINES = 2000
_OF_STEP = re.compile(r"#(\d{1,6}) (.*)", re.DOTALL)
_WRITTEN = re.compile(r"\d+\.\d+ (.*)", re.DOTALL)  # what its command wrote has a time in front
_ENDED = re.compile(r"(CACHED|CANCELED|DONE (\d+\.\d+)s|ERROR: (.*))", re.DOTALL)
_INSTRUCTION = re.compile(r"\[(?:[^\]]* )?\d+/\d+\] ")
_FLAGS = re.compile(r"^((?:\[[^\]]*\] )?\w+ )(?:--(?:mount|network|security|chmod|chown|link)(?:=\S+)?\s+)+")


@dataclass
class Step:
    """An instruction of the Dockerfile, or a chore of BuildKit (``internal``). ``status``: what it last said."""

    name: str
    seconds: float = 0.0
    cached: bool = False
    ended: bool = False
    error: str = ""
    status: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    @property
    def internal(self) -> bool:
        return not _INSTRUCTION.match(self.name)

    @property
    def title(self) -> str:
        """BuildKit's name for it in one line, without the flags of mounts."""
        return _one_line(self.name)

    @property
    def instruction(self) -> str:
        """The title without the stage and the number in front."""
        return _INSTRUCTION.sub("", self.title)

    @property
    def stage(self) -> str:
        """The stage of the Dockerfile that it belongs to."""
        found = re.match(r"\[(?:\S+ )?(\S+) +\d+/\d+\] ", self.name)
        return found[1] if found else ""

    @property
    def failed(self) -> bool:
        """True for the step that broke, not for those that were cancelled because of it."""
        return bool(self.error) and not re.search(r"context canceled|code = Canceled", self.error)

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command, where it had one."""
        found = re.search(r"exit code: (\d+)", self.error)
        return int(found[1]) if found else None


def names_in(dockerfile: str) -> dict[str, str]:
    """Instruction -> what it does: the first sentence of the comment above it, for a RUN without one that of its stage.

    The instruction is written as in ``Step.instruction``.
    """
    found, said, of_stage = {}, "", ""
    for line in re.sub(r"\\\n", " ", dockerfile).splitlines():
        if line.startswith("#"):
            said = said or re.split(r"\.(?: (?=\(?[A-Z])|$)", line[1:].strip())[0]
            continue
        if line.startswith("FROM "):
            of_stage = said
        elif line.startswith("RUN ") and (said or of_stage):
            found[_one_line(line)] = said or of_stage
        said = ""
    return found


def stages_in(dockerfile: str) -> list[str]:
    """The names of its stages, in order."""
    return re.findall(r"^FROM .* AS (\S+)$", dockerfile, re.MULTILINE)


def before(dockerfile: str, step: Step) -> str:
    """The Dockerfile up to ``step``, whose stage is then its last; empty where it has no such step."""
    lines, number, stage = dockerfile.splitlines(keepends=True), 0, ""
    while number < len(lines):
        end = number + 1
        while end < len(lines) and not lines[number].startswith("#") and lines[end - 1].endswith("\\\n"):
            end += 1
        instruction = "".join(lines[number:end]).replace("\\\n", " ")
        if instruction.startswith("FROM "):
            stage = instruction.split()[-1]
        elif stage == step.stage and _one_line(instruction) == step.instruction:
            return "".join(lines[:number])
        number = end
    return ""


def _one_line(instruction: str) -> str:
    """Without line breaks and the flags of mounts."""
    return _FLAGS.sub(r"\1", " ".join(instruction.split()), count=1)


class Progress:
    """All steps of one build that have begun; ``notes`` are buildx's own lines."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._steps: dict[str, Step] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those that a user wrote."""
        return tuple(step for step in self._steps.values() if not step.internal)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What buildx has against the Dockerfile: its list at the end."""
        found = (re.fullmatch(r"(?:\x1b\[0m)? - ([A-Z]\w+: .*)", note) for note in self.notes)
        return tuple(match[1] for match in found if match)

    @property
    def failed(self) -> Step | None:
        """The step that broke. One that was killed comes last: BuildKit kills those that run beside another."""
        broken = [step for step in self._steps.values() if step.failed]
        return min(broken, key=lambda step: step.exit_code == 137, default=None)

    def feed(self, line: str) -> Step | None:
        """Take in one line of buildx's output. Returns the step that it is about."""
        found = _OF_STEP.fullmatch(line)
        if not found:
            self.notes.append(line)
            return None
        number, text = found.groups()
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = Step(text)
        elif ended := _ENDED.fullmatch(text):
            step.ended, step.cached = True, text == "CACHED"
            step.seconds, step.error = (
                float(ended[2] or 0),
                "context canceled" if text == "CANCELED" else ended[3] or "",
            )
        elif text == step.name:
            step.ended = False  # it is named again whenever it goes on after another one
        elif written := _WRITTEN.fullmatch(text):
            # A progress bar rewrites its line: what a terminal would show at the end is what counts.
            step.lines.append(written[1].rstrip("\r").rsplit("\r", 1)[-1])
            step.status = step.lines[-1]
        elif text != "...":  # another step goes on here
            step.status = text
        return step
