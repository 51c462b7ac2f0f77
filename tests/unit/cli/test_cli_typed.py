"""What people type who come from Compose, Docker, uv and sparkrun is accepted, or answered with a line that works."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from envgen import cli
from envgen.__main__ import main
from envgen.cli import typed
from envgen.errors import ExitCode

FILE = (
    "version: 1\nname: t\nprofiles:\n  a:\n    mode: production\n    base: {image: debian:12}\n    gpu: none\n"
    "    services: {serve: {command: [sleep, '1']}, web: {command: [sleep, '1']}}\n"
    "    variants:\n      x: {env: {A: '1'}}\n      y: {env: {B: '2'}}\n"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "envgen.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command_of(words: list[str]) -> click.Command | None:
    """The command that words name; None where they name none."""
    found: click.Command = cli.main
    for word in words:
        if word.startswith("-") or not isinstance(found, click.Group):
            break
        deeper = found.get_command(click.Context(found), word)
        if deeper is None:
            return None
        found = deeper
    return found


@pytest.mark.parametrize("key", typed.ANSWERS)
def test_each_row_answers_what_is_typed(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = key.replace("*", "serve").split()
    assert main(words) == ExitCode.USAGE
    assert f" {typed.ANSWERS[key]}" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("answer", [*typed.ANSWERS.values(), *(f"`envgen {verb}`" for verb in typed.VERBS.values())])
def test_each_answer_names_commands_and_options_that_exist(answer: str) -> None:
    for line in re.findall(r"`envgen ([^`>]*)", answer):
        command = command_of(line.split())
        assert (command is not None and command is not cli.main) or line.startswith("--"), line
        options = {spelling for param in (command or cli.main).params for spelling in param.opts}
        options |= {"--help"}
        assert {word for word in line.split(" -- ")[0].split() if word.startswith("-")} <= options, line


@pytest.mark.parametrize("verb", typed.SAME)
def test_what_a_command_does_anyway_is_accepted(verb: str) -> None:
    command = command_of([verb])
    assert command is not None
    for option in typed.SAME[verb]:
        words = [option, "serve", "true"]
        context = command.make_context(verb, words if verb in ("exec", "run") else words[:2])
        assert not [name for name in context.params if name.startswith("same")]
    hidden = [param for param in command.params if getattr(param, "hidden", False)]
    assert hidden and option not in command.get_help(click.Context(command)).split()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["help"], "Build and run vLLM"),
        (["help", "down"], "Stop and remove the containers"),
        (["help", "cache", "clear"], "Remove compiled modules"),
        (["version"], "envgen "),
        (["start", "--help"], "Start each SERVICE"),
        (["exec", "-it", "--help"], "Run a command in the running"),
    ],
)
def test_verbs_that_mean_the_same(words: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert shown in capsys.readouterr().out


def test_a_folder_is_its_project_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "-f", str(project)]) == 0
    assert main(["init"]) == ExitCode.REFUSED and "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["config", "-p", "a", "-p", "a"],
        ["config", "-f", "x", "--file", "y"],
        ["cache", "list", "--version", "0.5.3", "--version", "0.7.2"],
        ["recipe", "add", "gpt-oss-20b", "--name", "x", "--name", "y"],
        ["exec", "-u", "1", "-u", "2", "serve", "true"],
        ["logs", "-n", "1", "--tail", "2"],
    ],
)
def test_an_option_is_not_dropped(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.USAGE
    assert re.search(r"--[a-z]+ is there 2 times", capsys.readouterr().err)


def test_every_command_refuses_a_value_that_is_given_twice() -> None:
    """All of them, also those that come later."""

    def each(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
        found: list[tuple[tuple[str, ...], click.Command]] = []
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            inner = each(command, (*path, name)) if isinstance(command, click.Group) else []
            found += inner or [((*path, name), command)]
        return found

    asked = 0
    for _, command in each(cli.main):
        for param in command.params:
            if isinstance(param, click.Option) and not param.is_flag and not param.multiple:
                option = param.opts[-1]
                context = click.Context(command, resilient_parsing=True)
                with pytest.raises(click.UsageError, match="is there 2 times"):
                    command.make_parser(context).parse_args([option, "1", option, "2"])
                asked += 1
    assert asked > 60


def test_variants_that_are_given_twice_are_laid_over_each_other(project: Path) -> None:
    seen = []
    command = command_of(["up"])
    assert command is not None
    for words in (["--variant", "x", "--variant", "y"], ["--variant", "x+y"], []):
        context = command.make_context("up", [*words, "serve"])
        seen.append("+".join(context.params["variant"]))
    assert seen == ["x+y", "x+y", ""]


@pytest.mark.parametrize("words", [["down", "-v"], ["down", "-v", "-p", "a"]])
def test_down_v_asks(words: list[str], project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.REFUSED  # there is no terminal: nobody agrees
    assert "nothing was removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("envgen up ", ["serve", "web"]),
        ("envgen restart s", ["serve"]),
        ("envgen run w", ["web"]),
        ("envgen doctor s", ["serve"]),
        ("envgen up -p ", ["a"]),
        ("envgen up --variant ", ["x", "y"]),
        ("envgen recipe add gpt-oss-1", ["gpt-oss-120b"]),
        ("envgen up -p nothing ", []),
        ("envgen cache clear ", []),
    ],
)
def test_names_of_the_project_are_completed(
    line: str, offered: list[str], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ENVGEN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert main([]) == 0
    printed = capsys.readouterr()
    assert (printed.out.split(), printed.err) == ([f"plain,{name}" for name in offered], "")


def test_modules_are_those_of_the_cache(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from envgen.app.cluster import machines
    from envgen.jitcache import service

    modules = [SimpleNamespace(name=name) for name in ("fused_moe_120", "page", "fused_moe_120")]
    monkeypatch.setattr(service.JitCache, "inventory", lambda _self: SimpleNamespace(modules=modules))
    monkeypatch.setattr(machines, "head_of", lambda deployment: deployment)
    for words in (["cache", "clear"], ["cache", "why"], ["cache", "list"], ["cache", "warm"]):
        command = command_of(words)
        assert command is not None
        argument = next(param for param in command.params if isinstance(param, click.Argument))
        items = argument.shell_complete(click.Context(command), "f")
        assert [item.value for item in items] == ["fused_moe_120"]
