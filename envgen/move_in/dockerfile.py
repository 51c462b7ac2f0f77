"""What a Dockerfile says, as far as it can be read without running it: stages, ENV, ARG, apt and pip lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from envgen.move_in.draft import Draft, fill, place, refused
from envgen.profile.shape import APT_NAME, REQUIREMENT, USER, matches

_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=\s*(.*?)\s*", re.IGNORECASE)
_HEREDOC = re.compile(r"(?<![<\w])\d*<<(-?)([\"']?)([A-Za-z_]\w*)\2")
_WITH_HEREDOC = frozenset(("RUN", "COPY", "ADD"))
_WITHOUT_PYTHON = re.compile(r"(.*/)?(cuda|ubuntu|debian|buildpack-deps)(:.*|@.*)?")
_EXTRA = "`dockerfile_extra` takes RUN, COPY, ENV, ARG and LABEL lines"
# Options of pip that take no value and change nothing about what is installed.
_PIP_PLAIN = re.compile(
    r"-q|-U|--(quiet|upgrade|no-cache-dir|no-cache|system|break-system-packages|root-user-action=\w+|prefer-binary"
    r"|disable-pip-version-check|no-input|progress-bar=\w+|compile-bytecode)"
)
_TIDY = re.compile(
    r"apt(-get)? (update|clean|autoclean|autoremove)( .*)?|set [-+]\w+( pipefail)?|true|"
    r"|rm -rf? [/\w .*-]*(/var/lib/apt|/tmp|/root/\.cache)[/\w .*-]*"
)
SOURCES = {"vllm": ("vllm", "vllm"), "flashinfer-python": ("flashinfer", "flashinfer")}  # -> its name here, its module


@dataclass(frozen=True)
class Instruction:
    line: int
    keyword: str
    text: str
    script: str = ""  # of here-documents


@dataclass
class Stage:
    line: int
    image: str
    name: str
    platform: str = ""
    steps: list[Instruction] = field(default_factory=list)


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, with the lines that they begin in."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape = "\\"
    number = 0
    while number < len(lines) and (found := _DIRECTIVE.fullmatch(lines[number].strip())):
        if found[1].lower() == "escape" and found[2] in ("\\", "`"):
            escape = found[2]
        number += 1
    made = []
    while number < len(lines):
        begin, parts = number, list[str]()
        while number < len(lines):
            line = lines[number]
            number += 1
            bare = line.strip()
            if bare.startswith("#") or (not bare and parts):
                continue  # a comment or an empty line does not end an instruction that goes on
            rest = line.rstrip()
            more = rest.endswith(escape)
            if not parts:
                begin = number - 1
            parts.append(rest[:-1] if more else rest)
            if not more:
                break
        joined = "".join(parts).strip()
        if not joined:
            continue
        keyword, _, rest = joined.partition(" ")
        keyword, script = keyword.upper(), []
        for dash, _quote, word in _HEREDOC.findall(rest) if keyword in _WITH_HEREDOC else ():
            while number < len(lines):
                line = lines[number].lstrip("\t") if dash else lines[number]
                number += 1
                if line == word:
                    break
                script.append(line)
        made.append(Instruction(begin + 1, keyword, rest.strip(), "\n".join(script)))
    return made


def stages(found: list[Instruction], build_args: Mapping[str, str]) -> list[Stage]:
    """The stages, their images with ARGs filled in. Instructions before the first FROM only give it values."""
    values: dict[str, str] = {}
    made: list[Stage] = []
    for step in found:
        if step.keyword == "FROM":
            words = step.text.split()
            flags = [word for word in words if word.startswith("--")]
            words = words[len(flags) :]
            name = words[2] if len(words) > 2 and words[1].upper() == "AS" else ""
            platform = next((flag[11:] for flag in flags if flag.startswith("--platform=")), "")
            image = fill(words[0], values) if words else None
            made.append(Stage(step.line, image.text if image and not image.missing else "", name.lower(), platform))
        elif made:
            made[-1].steps.append(step)
        elif step.keyword == "ARG":
            _argument(step, values, build_args)
    return made


def _argument(step: Instruction, values: dict[str, str], build_args: Mapping[str, str]) -> None:
    for word in _words(step.text) or []:
        name, has_default, default = word.partition("=")
        if name in build_args:
            values[name] = build_args[name]
        elif has_default:
            values[name] = fill(default, values).text


def _words(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return None


def read(draft: Draft, text: str, label: str, target: str = "", build_args: Mapping[str, str] | None = None) -> None:
    """Lay what the Dockerfile's final stage (or ``target``) and those below it say into the profile."""
    build_args = build_args or {}
    found = stages(instructions(text), build_args)
    chosen = (
        next((one for one in found if one.name == target.lower()), None) if target else found[-1] if found else None
    )
    if chosen is None:
        draft.note((label, 1), f"stage {target}" if target else "FROM", "there is no such stage, so nothing was read")
        return
    chain = [chosen]
    while below := next((one for one in found[: found.index(chain[0])] if one.name == chain[0].image.lower()), None):
        chain.insert(0, below)
    for stage in found:
        if stage not in chain:
            name = f"stage {stage.name}" if stage.name else "a stage without a name"
            draft.note((label, stage.line), name, "other stages are not read: envgen builds `sources` itself")
    base = chain[0]
    if not base.image or refused("image", base.image):
        draft.note((label, base.line), "FROM", "its image is not known without a build argument: write `base.image`")
    else:
        draft.put("base", "image", value=base.image)
        if base.platform in ("linux/arm64", "linux/amd64"):
            draft.put("base", "platform", value=base.platform)
        python_of(draft, base.image)
    values = dict(build_args)
    for stage in chain:
        for step in stage.steps:
            _step(draft, step, label, values, build_args)


def python_of(draft: Draft, image: str) -> None:
    """Where the image is known to have no Python: the packages that bring it."""
    if _WITHOUT_PYTHON.fullmatch(image):
        draft.put("base", "apt", value=["python3", "python3-dev", "python3-pip"])
        draft.remark("base", "apt", text="This image has no Python of its own.")


def _step(draft: Draft, step: Instruction, label: str, values: dict[str, str], build_args: Mapping[str, str]) -> None:
    if step.keyword == "ARG":
        _argument(step, values, build_args)
    elif step.keyword == "ENV":
        for name, text in _pairs(step.text):
            filled = fill(text, values)
            if filled.missing:
                draft.note((label, step.line), f"ENV {name}", f"needs ${filled.missing[0]}, which is not known here")
                continue
            values[name] = filled.text
            place(draft, name, filled.text, (label, step.line))
    elif step.keyword == "RUN":
        left = [command for command in _commands(step) if not _installed(draft, command)]
        if left:
            draft.note((label, step.line), f"RUN {left[0]}" + (" ..." if left[1:] else ""), _EXTRA)
    elif step.keyword == "WORKDIR" and step.text.startswith("/") and "$" not in step.text:
        draft.put("working_dir", value=step.text.strip("\"'"))
    elif step.keyword == "USER" and matches(USER, step.text):
        draft.put("_image", "user", value=step.text)
    elif step.keyword in ("CMD", "ENTRYPOINT"):
        draft.put("_image", step.keyword, value=exec_words(step.text))
        if step.keyword == "ENTRYPOINT":
            draft.put("_image", "CMD", value=[])
    elif step.keyword != "EXPOSE":
        extra = step.keyword in ("COPY", "LABEL")
        why = _EXTRA if extra else "no key of a profile does this"
        draft.note((label, step.line), f"{step.keyword} {step.text}", why)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """The variables of an ENV: ``A=1 B="2 3"``, or the old form ``A 1``."""
    if re.match(r"[A-Za-z_]\w*=", text):
        for word in _words(text) or []:
            name, equals, value = word.partition("=")
            if equals:
                yield name, value
    else:
        name, _, value = text.partition(" ")
        yield name, value.strip()


def exec_words(text: str) -> list[str]:
    """The words of CMD or ENTRYPOINT; the shell form runs in a shell."""
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return words
    return ["/bin/sh", "-c", text]


def _commands(step: Instruction) -> list[str]:
    """The single commands of a RUN, its flags (--mount=...) left out."""
    text = re.sub(r"^(--(mount|network|security)=\S+\s*)+", "", step.text)
    if step.script:
        lines = (line for line in step.script.splitlines() if not line.lstrip().startswith("#"))
        text = re.sub(r"\\\n", " ", "\n".join(lines)) if _HEREDOC.fullmatch(text.strip()) else text
    elif text.startswith("["):
        return [shlex.join(exec_words(text))]
    made = []
    for line in text.split("\n"):
        lexer = shlex.shlex(line, posix=False, punctuation_chars=";&|")
        lexer.whitespace_split, lexer.commenters = True, ""
        words: list[str] = []
        try:
            for word in [*lexer, ";"]:
                if set(word) <= set(";&|"):
                    made.append(" ".join(words))
                    words = []
                else:
                    words.append(word)
        except ValueError:
            return [text]
    return [command for command in made if command]


def _installed(draft: Draft, command: str) -> bool:
    """Whether all that this command does has a place in the profile; it is there then."""
    if _TIDY.fullmatch(command[:1000]):
        return True
    words = _words(command)
    while words and (words[0] == "sudo" or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
        words = words[1:]
    if not words:
        return False
    if words[0] in ("apt-get", "apt") and "install" in words:
        return _apt(draft, words[words.index("install") + 1 :])
    if words[:3] in (["python3", "-m", "pip"], ["python", "-m", "pip"]):
        words = words[2:]
    if words[:2] == ["uv", "pip"]:
        words = words[1:]
    if words[0] in ("pip", "pip3") and words[1:2] == ["install"]:
        return _pip(draft, words[2:])
    return False


def _apt(draft: Draft, words: list[str]) -> bool:
    packages = [word for word in words if not word.startswith("-")]
    if any(re.match(r"-[to]|--target", word) for word in words) or not all(matches(APT_NAME, one) for one in packages):
        return False
    for one in packages:
        draft.add("apt", "runtime", value=one)
    return True


def _pip(draft: Draft, words: list[str]) -> bool:
    wanted = [word for word in words if not _PIP_PLAIN.fullmatch(word)]
    if any(not matches(REQUIREMENT, one) for one in wanted):
        return False
    for one in wanted:
        name, _, version = one.partition("==")
        if name in SOURCES and re.fullmatch(r"[0-9][A-Za-z0-9.!+_-]*", version):
            known, module = SOURCES[name]
            source = {"origin": {"wheel": one}, "package": module, "distribution": name, "mount": f"/workspace/{known}"}
            draft.put("sources", known, value={**source, "install": {"dependencies": True}})
        else:
            draft.add("pip", "tools", value=one)
    return True
