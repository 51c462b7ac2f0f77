"""Each `envgen ...` in a message, a help text or a page is a command line that click accepts, and each example of a
project file in a page is one that loads and renders."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import commands_page
import pytest
import yaml

from envgen.app.session import Session
from envgen.cli import main
from envgen.profile.load import load_project
from envgen.profile.unused import warnings
from envgen.render.outputs import render_profile

ROOT = Path(__file__).parents[3]
PYTHON = sorted(path for path in ROOT.glob("envgen/**/*.py") if "inside" not in path.parts)
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "AGENTS.md",
        ROOT / "templates/init/AGENTS.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("envgen/**/*.yaml"),
        *ROOT.glob("examples/**/*.md"),
    ]
)
# In backticks; a whole hint, or what stands behind a colon or a semicolon in one; a line of an example.
QUOTED = re.compile(r"`envgen ([^`]+)`")
HINT = re.compile(r"(?:^|[:;] )envgen ([^;]+)")
EXAMPLE = re.compile(r"^ *(?:\$ )?envgen (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```(?:console|sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# An example of a project file, whole or in part: ```yaml title="envgen.yaml".
YAML = re.compile(r'^( *)```yaml title="(envgen\.(?:local\.)?yaml)"\n(.*?)^ *```', re.MULTILINE | re.DOTALL)


def _filled(value: ast.expr) -> str:
    """As ``Profile.chosen`` and ``chosen_variant`` are, with all that a command line can add to them."""
    name = value.value.attr if isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Attribute) else ""
    chosen = "--profile 1 --file 1 --set 1=1"
    return {"chosen": chosen, "chosen_variant": f"{chosen} --variant 1"}.get(name, "1")


def _texts(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Each string, and whether it is a hint. What an f-string fills in is the word 1, or a profile's options."""
    hints, parts = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("hint", "cure", "fix"):
            hints |= {id(one) for one in ast.walk(node.value)}
        if isinstance(node, ast.JoinedStr):
            parts |= {id(one) for one in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = [str(one.value) if isinstance(one, ast.Constant) else _filled(one) for one in node.values]
            yield "".join(words), id(node) in hints
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value, id(node) in hints


def _found() -> Iterator[tuple[str, str]]:
    """A command line, and where it stands."""
    for path in PYTHON:
        source = path.read_text("utf-8")
        if not re.search(r"(?<!from )envgen [a-z-]", source):
            continue
        for text, is_hint in _texts(ast.parse(source)):
            patterns = (QUOTED, *((HINT,) if is_hint else ()), *((EXAMPLE,) if "\b\n" in text else ()))
            for pattern in patterns:
                yield from ((one, str(path.relative_to(ROOT))) for one in pattern.findall(text))
    for path in PAGES:
        text = path.read_text("utf-8")
        lines = QUOTED.findall(text) + [one for block in BLOCK.findall(text) for one in EXAMPLE.findall(block)]
        yield from ((one, str(path.relative_to(ROOT))) for one in lines)


def _refused(line: str, whole: bool = False) -> str:
    """What click has against the command and its options. The words behind them may be prose, unless it is ``whole``:
    then it may name a file that is not there, and nothing else.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(itertools.takewhile(lambda word: not set(word) <= set("|&;<>()"), lexer))
    except ValueError:  # half a quotation, or a line that goes on
        words = line.split()
    command: click.Command = main
    context = click.Context(main, info_name="envgen")
    try:
        while True:
            given, words = words, command.make_parser(context).parse_args(list(words))[1]
            if whole and not isinstance(command, click.Group):
                command.parse_args(context, given)
            if not isinstance(command, click.Group) or not words or not re.fullmatch("[a-z]+", words[0]):
                return ""
            below = command.get_command(context, words[0])
            if below is None:
                return f"no command given {words[0]}"
            command, context, words = (
                below,
                click.Context(below, parent=context, info_name=words[0], **below.context_settings),
                words[1:],
            )
    except click.BadOptionUsage:  # `--bundle` without its file, as a page names it
        return ""
    except click.UsageError as error:
        return "" if whole and "does not exist" in error.message else error.format_message()


def test_every_command_line_that_is_shown_can_be_typed() -> None:
    places = defaultdict[str, set[str]](set)
    for line, place in _found():
        places[line].add(place)
    assert len(places) > 250
    wrong = {line: why for line in places if (why := _refused(line))}
    assert not wrong, "\n".join(
        f"{', '.join(sorted(places[line]))}: envgen {line}: {why}" for line, why in wrong.items()
    )


def test_a_hint_repeats_the_file_and_the_values(tmp_path: Path) -> None:
    """By the long name: to `envgen logs`, -f is another option."""
    file = tmp_path / "envgen.yaml"
    file.write_text(
        "version: 1\nname: x\nprofiles: {one: {mode: development, gpu: none, base: {image: 'debian:12'}}}\n"
    )
    chosen = Session(file, sets=("image=a:1", "working_dir=/a b")).profile().chosen
    given = ["--file", str(file), "--set", "image=a:1", "--set", "working_dir=/a b"]
    assert shlex.split(chosen) == ["--profile", "one", *given]
    assert not [verb for verb in ("up 1", "logs 1", "ps", "down") if _refused(f"{verb} {chosen}", whole=True)]


def test_every_example_of_a_page_has_arguments_that_click_takes() -> None:
    lines = [(path.name, line) for path in PAGES for block in BLOCK.findall(path.read_text("utf-8"))
             for line in EXAMPLE.findall(block) if not line.endswith("\\")]  # fmt: skip
    assert len(lines) > 150
    assert not [(name, line, why) for name, line in lines if (why := _refused(line, whole=True))]
    assert all(_refused(line, whole=True) for line in ("bench --pp few", "bench --plan none", "results list a"))


@pytest.mark.parametrize("line", ["upp serve", "up --nope", "cache clean x", "patch -p", "nodes check --nope; ps"])
def test_what_click_refuses_is_found(line: str) -> None:
    assert _refused(line)


def test_the_page_of_commands_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == commands_page.text(), "run scripts/regenerate"


def _merged(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{key: _merged(under.get(key), value) for key, value in over.items()}}


def _around(found: dict[str, Any]) -> dict[str, Any]:
    """The project that an excerpt stands in: sections of a project, or keys of a profile."""
    sections = found if found.keys() <= {"defaults", "profiles"} else {"defaults": found}
    base = {
        "mode": "production",
        "base": {"image": "example.org/base:1"},
        "cuda": {"arch_list": "12.1a"},
        "caches": {"huggingface": {"path": "/root/.cache/huggingface"}},
        "env": {"DEBUG": 1},
        "services": {"serve": {"command": ["vllm", "serve", "a/model"], "ports": ["127.0.0.1:8000:8000"]}},
        "nodes": {
            f"spark-{n}": {"context": f"spark-{n}", "address": f"192.168.177.1{n}", "interface": "eth0"} for n in (1, 2)
        },
    }
    names = sections.get("profiles", {"example": {}})
    whole = {"version": 1, "name": "example", "defaults": base, "profiles": names}
    merged: dict[str, Any] = _merged(whole, {**sections, "profiles": names})
    return merged


EXAMPLES = [
    pytest.param(name, textwrap.dedent(block), id=f"{path.stem}-{number}")
    for path in PAGES
    if path.suffix == ".md"
    for number, (_, name, block) in enumerate(YAML.findall(path.read_text("utf-8")), 1)
]
assert EXAMPLES


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_every_project_file_that_is_shown_loads_and_renders(name: str, text: str, tmp_path: Path) -> None:
    found = yaml.safe_load(text)
    whole = found if "version" in found else _around({} if "local" in name else found)
    file = tmp_path / "envgen.yaml"
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    (tmp_path / name).write_text(text if "local" in name else file.read_text("utf-8"), encoding="utf-8")
    loaded = load_project(file=file)
    profiles = loaded.project.profiles
    for series in {one.patches for profile in profiles.values() for one in profile.sources.values() if one.patches}:
        (tmp_path / "patches" / series).mkdir(parents=True)
        (tmp_path / "patches" / series / "series").write_text("a.patch\n")
        (tmp_path / "patches" / series / "a.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    assert "version" not in found or warnings(loaded) == ()
    for variant in {"", *(name for profile in profiles.values() for name in profile.variants)}:
        project = load_project(file=file, variant=variant).project
        assert all(render_profile(profile, root=tmp_path).files for profile in project.profiles.values())
