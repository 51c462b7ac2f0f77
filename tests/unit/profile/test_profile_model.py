"""`services.X.model`: the one place that names a model, and what may still be written beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_project_files import HEAD

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.profile.load import load_project
from envgen.profile.service import Service

FILE = f"""{HEAD}\
    caches: {{huggingface: {{path: /hf}}}}
    services:
      serve: {{model: {{repo: me/Small-1B}}, %s}}
"""
PLAIN = "command: [vllm, serve], ports: ['8000:8000'], ready: {port: 8000}"


def serve(tmp_path: Path, text: str, *sets: str) -> Service:
    file = tmp_path / "envgen.yaml"
    file.write_text(FILE % text)
    return load_project(file=file, sets=sets).project.profiles["dev"].services["serve"]


def asked(service: Service) -> str | None:
    return service.ready.model if service.ready else None


def test_one_place_names_a_model(tmp_path: Path) -> None:
    found = serve(tmp_path, PLAIN)
    assert found.argv == ("vllm", "serve", "me/Small-1B")
    assert asked(found) == "me/Small-1B"
    found = serve(tmp_path, PLAIN, "services.serve.model.repo=you/Big", "services.serve.model.revision=v2")
    assert found.argv == ("vllm", "serve", "you/Big", "--revision", "v2")
    assert asked(found) == "you/Big"


def test_a_profile_that_extends_it_and_a_variant_name_another_model(tmp_path: Path) -> None:
    more = """\
    variants: {big: {services: {serve: {model: {repo: you/Big}}}}}
  child: {extends: dev, dockerfile: Dockerfile.child, services: {serve: {model: {repo: you/Other}}}}
"""
    file = tmp_path / "envgen.yaml"
    file.write_text(FILE % PLAIN + more)
    profiles = load_project(file=file, variant="big").project.profiles
    found = {name: profiles[name].services["serve"] for name in profiles}
    assert found["dev"].argv[2:] == ("you/Big",) and asked(found["dev"]) == "you/Big"
    assert found["child"].argv[2:] == ("you/Other",) and asked(found["child"]) == "you/Other"


@pytest.mark.parametrize(
    ("text", "argv", "name", "served"),
    [
        (PLAIN, "me/Small-1B", "me/Small-1B", "me/Small-1B"),
        (PLAIN.replace("serve]", "serve, me/Small-1B]"), "me/Small-1B", "me/Small-1B", "me/Small-1B"),
        (PLAIN + ", args: {model: me/Small-1B}", "--model me/Small-1B", "me/Small-1B", "me/Small-1B"),
        (PLAIN + ", args: {served-model-name: x}", "me/Small-1B --served-model-name x", "x", "x"),
        (PLAIN + ", args: {served_model_name: [x, y]}", "me/Small-1B --served_model_name x y", "x", "x"),
        (PLAIN.replace("port: 8000}", "port: 8000, model: y}, args: {served-model-name: [x, y]}"),
         "me/Small-1B --served-model-name x y", "y", "y"),
        (PLAIN.replace("serve]", "serve, me/Small-1B, --served-model-name, x]"),
         "me/Small-1B --served-model-name x", "x", "x"),
        (PLAIN.replace("{port: 8000}", "{timeout: 5m}"), "me/Small-1B", None, "me/Small-1B"),
        ("command: [server]", "", None, None),
    ],
)  # fmt: skip
def test_what_is_written_stays(tmp_path: Path, text: str, argv: str, name: str | None, served: str | None) -> None:
    found = serve(tmp_path, text)
    assert (" ".join(found.argv[2:]), asked(found), found.served_name) == (argv, name, served)


def test_another_server_gets_nothing(tmp_path: Path) -> None:
    found = serve(tmp_path, "command: [python3, -m, server], ports: ['8000:8000'], ready: {port: 8000}")
    assert found.argv == ("python3", "-m", "server") and asked(found) is None


def test_a_model_that_the_command_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="the command loads you/Other") as refused:
        serve(tmp_path, "command: [vllm, serve, you/Other]")
    assert "write command: [vllm, serve]" in refused.value.problems[0].hint


def test_a_repository_that_is_none_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as refused:
        serve(tmp_path, PLAIN, "services.serve.model.repo=../x")
    assert [str(one.place).split(":")[0] for one in refused.value.problems] == ["--set services.serve.model.repo"]


def test_the_name_follows_from_the_model_of_an_override(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(tmp_path, PLAIN)
    words = ["--set", "services.serve.model.repo=you/Big", "--explain"]
    assert main(["config", "-f", str(tmp_path / "envgen.yaml"), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'services.serve.ready.model = "you/Big"  # default' in lines


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (PLAIN.replace("port: 8000}", "port: 8000, model: y}"), "me/Small-1B"),
        (PLAIN.replace("port: 8000}", "port: 8000, model: y}, args: {served-model-name: mine}"), "mine"),
        (PLAIN.replace("port: 8000}", "port: 8000, model: y}").replace("e]", "e, me/Small-1B, --served-model-name=z]"),
         "z"),
    ],
)  # fmt: skip
def test_a_name_that_the_server_cannot_have_is_refused(tmp_path: Path, text: str, names: str) -> None:
    """Before a running server is replaced by one that is never ready."""
    with pytest.raises(ProjectError, match=f"the server answers to {names}, not to y") as refused:
        serve(tmp_path, text)
    assert f"ready: {{model: {names}}}" in refused.value.problems[0].hint
    adapters = text.replace("me/Small-1B,", "me/Small-1B, --lora-modules, y=/a,").replace(
        "args: {", "args: {lora-modules: 'y=/a', "
    )
    more = adapters if adapters != text else text + ", args: {lora-modules: y=/a}"
    assert asked(serve(tmp_path, more)) == "y"


@pytest.mark.parametrize("flag", ["runner: pooling", "task: embed", "convert: classify"])
def test_what_a_model_without_prompts_is_not_asked(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What another profile uses is inherited without a word; of its own it would be a lie of the file."""
    file, why = tmp_path / "envgen.yaml", "a model that embeds, ranks or classifies completes no text"
    asks = PLAIN.replace("port: 8000}", "port: 8000, prompt: The capital, expect_text: Paris}")
    asks += ", health: {http: /health, complete: 50s}"
    child = f"  child: {{extends: dev, dockerfile: Dockerfile.c, services: {{serve: {{args: {{{flag}}}}}}}}}\n"
    for text, warned in ((FILE % asks + child, 0), (FILE % f"{asks}, args: {{{flag}}}", 2)):
        file.write_text(text)
        assert main(["config", "-f", str(file), "-p", "child" if "child" in text else "dev"]) == 0
        assert capsys.readouterr().err.count(why) == warned
