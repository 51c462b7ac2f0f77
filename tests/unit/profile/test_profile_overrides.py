"""Overrides: their paths, their values, where they count, and what they say when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_project_files import HEAD, SOURCE
from hypothesis import given
from hypothesis import strategies as st

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.profile.layers import split_path
from envgen.profile.load import Loaded, load_project
from envgen.profile.model import Profile
from envgen.profile.tree import join_path

TEXT = (
    HEAD
    + "    sources: {vllm: "
    + SOURCE % "origin: {checkout: ../v}"
    + "}\n"
    + """\
    env: {VLLM_X: 1}
    pip: {tools: [a]}
    services:
      serve: {command: [x], args: {max-model-len: 8192, a: {b: 1}}, health: {http: /health}}
  prod:
    mode: production
    dockerfile: Dockerfile.prod
    sources: {vllm: {origin: {git: https://h/x, ref: main}, package: vllm, distribution: vllm, mount: /workspace/vllm}}
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "envgen.yaml"
    path.write_text(TEXT)
    return path


def load(file: Path, *sets: str, **environ: str) -> Loaded:
    return load_project(file=file, sets=sets, environ={f"ENVGEN_{name}": value for name, value in environ.items()})


def dev(file: Path, *sets: str, **environ: str) -> Profile:
    return load(file, *sets, **environ).project.profiles["dev"]


def messages(file: Path, *sets: str, **environ: str) -> list[str]:
    with pytest.raises(ProjectError) as caught:
        load(file, *sets, **environ)
    return [str(problem) for problem in caught.value.problems]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_paths_come_back(parts: list[str]) -> None:
    assert split_path(join_path(parts)) == tuple(parts)


@given(st.text())
def test_any_text_is_a_path_or_a_sentence(text: str) -> None:
    try:
        parts = split_path(text)
    except ValueError as error:
        assert str(error)
    else:
        assert split_path(join_path(parts)) == parts


def test_order_of_layers(file: Path, tmp_path: Path) -> None:
    (tmp_path / "envgen.local.yaml").write_text("defaults: {build: {max_jobs: 2}}\n")
    assert str(dev(file).build.max_jobs) == "2"
    assert str(dev(file, BUILD__MAX_JOBS="3").build.max_jobs) == "3"
    assert str(dev(file, "build.max_jobs=4", BUILD__MAX_JOBS="3").build.max_jobs) == "4"
    assert str(dev(file, "build.max_jobs=4", "build.max_jobs=5").build.max_jobs) == "5"
    shared = load_project(file=file, local=False, environ={"ENVGEN_BUILD__MAX_JOBS": "3"}).project.profiles["dev"]
    assert str(shared.build.max_jobs) == "auto"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        ("0.70", "0.70"),
        ("true", True),
        ("a: b", "a: b"),
        ("a #b", "a #b"),
        ("'true'", "true"),
        ('"a b"', "a b"),
        ("[a, 0.5]", ("a", "0.5")),
        ("{b: 1, c: [x, 2.50, null]}", '{"b":1,"c":["x",2.5,null]}'),
        ("*x", "*x"),
        ("$(id)", "$(id)"),
        ("a\\b", "a\\b"),
        (" a ", "a"),
    ],
)
def test_values(file: Path, value: str, expected: object) -> None:
    assert dev(file, f"services.serve.args.x={value}").services["serve"].args["x"] == expected


def test_a_mapping_merges_and_null_removes(file: Path) -> None:
    assert dev(file, "services.serve.args.a={c: 2}").services["serve"].args["a"] == '{"b":1,"c":2}'
    assert "max-model-len" not in dev(file, "services.serve.args.max-model-len=null").services["serve"].args
    assert dev(file, "pip.tools=[b, c]").pip.tools == ("b", "c")
    assert dev(file, 'services.serve.args."a.b"=1').services["serve"].args["a.b"] == "1"


@pytest.mark.parametrize("key", ["env.mxfp4.VLLM_Z", "services.serve.ready.expect.moe", "services.serve.args.x"])
def test_null_of_a_key_that_is_not_there_removes_nothing(file: Path, key: str) -> None:
    assert dev(file, f"{key}=null").services == dev(file).services


def test_null_takes_away_a_name_that_only_a_default_can_replace(file: Path) -> None:
    with pytest.raises(ProjectError, match="profiles dev and prod both write Dockerfile"):
        load_project(file=file, profile="prod", sets=["dockerfile=null"])


def test_the_switches_of_compile_gate_are_variables(file: Path) -> None:
    switches = {"ENVGEN_GATE": "off", "ENVGEN_GATE_MEMORY": "40", "ENVGEN_GATE_CORES": "8"}
    assert dev(file, *(f"env.{name}={value}" for name, value in switches.items())).env.items() >= switches.items()


def test_an_argument_keeps_its_place(file: Path) -> None:
    assert list(dev(file, "services.serve.args.max-model-len=1").services["serve"].args) == ["max-model-len", "a"]


def test_an_empty_variable_is_unset(file: Path) -> None:
    assert str(dev(file, BUILD__MAX_JOBS=" ").build.max_jobs) == "auto"


def test_a_variable_that_no_compose_file_names_changes_no_key(file: Path) -> None:
    assert load(file, GPU="none", SERVICES__SERVE__ARGS__X="1").project == load(file).project


def test_another_kind_of_origin_replaces_the_whole(file: Path) -> None:
    origin = dev(file, "sources.vllm.origin={git: https://h/y, ref: r}").sources["vllm"].origin
    assert (origin.git, origin.ref, origin.checkout) == ("https://h/y", "r", None)
    loaded = load_project(file=file, profile="prod", sets=["sources.vllm.origin.ref=refs/pull/7/head"])
    prod = loaded.project.profiles["prod"].sources["vllm"].origin
    assert (prod.git, prod.ref) == ("https://h/x", "refs/pull/7/head")


def test_overrides_change_the_profile_in_use_alone(file: Path) -> None:
    found = load(file, "services.serve.interactive=true", SOURCES__VLLM__ORIGIN__CHECKOUT="/home/me/vllm").project
    assert found.profiles["dev"].services["serve"].interactive
    assert str(found.profiles["dev"].sources["vllm"].origin.checkout) == "/home/me/vllm"
    assert found.profiles["prod"].services == {} and found.profiles["prod"].sources["vllm"].origin.kind == "git"


def test_an_override_that_breaks_the_profile_is_an_error_there(file: Path) -> None:
    sets = ["sources.vllm.origin.checkout=/home/me/vllm"]
    with pytest.raises(ProjectError, match="a production profile cannot mount checkouts") as refused:
        load_project(file=file, profile="prod", sets=sets)
    assert [str(problem.place).split(":")[0] for problem in refused.value.problems] == [
        "--set sources.vllm.origin.checkout"
    ]


@pytest.mark.parametrize(
    ("assignment", "start", "hint"),
    [
        ("build.max_job=4", "--set build.max_job: build.max_job: unknown key", "did you mean `max_jobs`?"),
        ("build.max_jobs=x", "--set build.max_jobs: build.max_jobs: 'x' is not a number of jobs", ""),
        ("bulid.max_jobs=4", "--set bulid.max_jobs: bulid: unknown key", "did you mean `build`?"),
        ("build.max_jobs", "--set build.max_jobs: is not an assignment", "--set build.max_jobs=4"),
        ("=4", "--set =4: is not an assignment", ""),
        ("build.max_jobs=", "--set build.max_jobs: has no value", "=null removes it"),
        ("a..b=1", "--set a..b: is not a path: a part between the dots is empty, or a double quote is not closed", ""),
        ('"a=1', '--set "a=1: is not an assignment', ""),
        ('"a"b=1', '--set "a"b: is not a path: a part between the dots is empty, or a double quote', ""),
        ("pip.tools.0=b", "--set pip.tools.0: pip.tools: expected a list, found a mapping", ""),
        (
            "services.server.args.x=1",
            "--set services.server.args.x: services.server: does not exist; overrides can't add it",
            "did you mean `serve`?",
        ),
        ("pip.tools=[a", "--set pip.tools: is not a YAML value", "quote it"),
        ("pip.tools=[a, *b]", "--set pip.tools: is not a YAML value", ""),
        ("pip.tools=[!x a]", "--set pip.tools: [0]: the tag !x is not supported", ""),
        ("description=a\nb", "--set description: contains the control character '\\n'", ""),
        ("description=\udc80", "--set description: contains a lone surrogate", ""),
        ("build=4", "--set build: build: expected a mapping, found a whole number (4)", ""),
        ("name=x", "--set name: name: unknown key", ""),
        ("pip.tools=" + "[" * 2000, "--set pip.tools: nests deeper than 60", ""),
    ],
)
def test_a_wrong_option(file: Path, assignment: str, start: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = messages(file, assignment)
    assert len(found) == 1, found
    assert found[0].startswith(start)
    assert hint in found[0]
    assert main(["config", "-f", str(file), "--set", assignment]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "internal error" not in shown


@pytest.mark.parametrize(
    ("name", "value", "start"),
    [
        ("BUILD__MAX_JOBS", "x", "ENVGEN_BUILD__MAX_JOBS: build.max_jobs: 'x' is not a number of jobs"),
        ("BUILD__MAX_JOBS", "\udc80", "ENVGEN_BUILD__MAX_JOBS: contains a lone surrogate"),
        ("CACHES__HUGINGFACE__HOST", "/x", "ENVGEN_CACHES__HUGINGFACE__HOST: caches.hugingface: does not exist"),
    ],
)
def test_a_wrong_variable(file: Path, name: str, value: str, start: str) -> None:
    found = messages(file, **{name: value})
    assert len(found) == 1, found
    assert found[0].startswith(start)


def test_problems_of_all_layers_come_together(file: Path, tmp_path: Path) -> None:
    (tmp_path / "envgen.local.yaml").write_text("defaults: {ipc: x}\n")
    found = messages(file, "gpu=x", "nonsense", BUILD__MAX_JOBS="x")
    assert len(found) == 4, found


@given(name=st.text(max_size=30), value=st.text(max_size=30))
def test_no_option_is_a_traceback(name: str, value: str) -> None:
    folder = Path(__file__).parents[3]
    try:
        load_project(file=folder / "envgen.yaml", sets=[f"{name}={value}"], local=False)
    except ProjectError as error:
        assert str(error)


TOKEN = "hf_" + "abcdefghij" * 3


@pytest.mark.parametrize("key", [f"services.{TOKEN}.env", TOKEN, f"env.x.{TOKEN}", f"services.serve.args.{TOKEN}"])
@pytest.mark.parametrize("words", [["config"], ["config", "--json"]])
def test_a_token_as_a_name_is_refused_and_not_printed(
    file: Path, key: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-f", str(file), "--set", f"{key}=1"]) == 2
    printed = capsys.readouterr()
    assert TOKEN not in printed.out + printed.err
