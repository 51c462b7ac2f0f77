"""What a file may be, before and beside its contents: bytes, size, place, patches, the local file."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_project_files import HEAD, SOURCE

from envgen import files
from envgen.__main__ import main
from envgen.errors import Problem, ProjectError, UsageError
from envgen.patches.series import load_series
from envgen.profile.load import find, load_project
from envgen.render.locking import series_of
from envgen.render.outputs import render_profile


def project(folder: Path, text: str | bytes, local: str = "") -> Path:
    file = folder / "envgen.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if local:
        (folder / "envgen.local.yaml").write_text(local)
    return file


def problems(file: Path) -> tuple[Problem, ...]:
    with pytest.raises(ProjectError) as caught:
        load_project(file=file)
    return caught.value.problems


def only(file: Path) -> Problem:
    found = problems(file)
    assert len(found) == 1, found
    return found[0]


def test_ten_megabytes_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    file = project(tmp_path, HEAD + "# padding\n" * 1_000_000)
    assert "larger than 1 MiB" in only(file).message


@pytest.mark.parametrize(
    ("data", "line", "byte"),
    [
        (HEAD.encode() + b"    description: caf\xe9\n", 9, "0xe9"),
        (b"\xff\xfev\x00", 1, "0xff"),
        (b"\xef\xbb\xbfname: \xff\n", 1, "0xff"),
    ],
)
def test_bytes_that_are_not_utf8(tmp_path: Path, data: bytes, line: int, byte: str) -> None:
    problem = only(project(tmp_path, data))
    assert problem.message == f"is not UTF-8 text: byte {byte}"
    assert problem.place and problem.place.line == line


def test_a_byte_order_mark_and_foreign_line_ends_are_fine(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + (HEAD + "    description: caf\u00e9 \u2713\n").replace("\n", "\r\n").encode()
    assert load_project(file=project(tmp_path, text)).project.profiles["dev"].description == "café ✓"


def test_an_alias_is_a_copy(tmp_path: Path) -> None:
    text = HEAD + "    env: {X: &a 1, Y: *a}\n"
    assert load_project(file=project(tmp_path, text)).project.profiles["dev"].env == {"X": "1", "Y": "1"}


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "-f", str(tmp_path / "no.yaml")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "is a folder" in only(tmp_path).message


def test_nothing_found_upward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no envgen\.yaml"):
        find(tmp_path)
    assert main(["config"]) == 2
    assert "envgen init" in capsys.readouterr().err


def test_the_file_is_found_upward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, HEAD)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    loaded = load_project()
    assert loaded.project.root == tmp_path
    project(tmp_path, HEAD + "    gpu: x\n")
    with pytest.raises(ProjectError, match=r"^\.\./\.\./envgen\.yaml:"):
        load_project()


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project(tmp_path, HEAD)

    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(file))  # chmod keeps nothing from root

    monkeypatch.setattr(files, "opened", refuse)
    assert "cannot be read" in only(file).message


# --- patches ----------------------------------------------------------------------------------------------------------

PATCHED = HEAD + "    sources: {vllm: " + SOURCE % "patches: vllm, origin: {checkout: ../v}" + "}\n"


@pytest.mark.parametrize("series", [None, "", "# 0001-a.patch\n\n"])
def test_a_series_without_a_patch_is_an_error_except_where_it_is_begun(tmp_path: Path, series: str | None) -> None:
    (tmp_path / "patches/vllm").mkdir(parents=True)
    if series is not None:
        (tmp_path / "patches/vllm/series").write_text(series)
    file = project(tmp_path, PATCHED)
    with pytest.raises(ProjectError, match=r"patches/vllm/series: (does not exist|names no patch)"):
        load_series(file.parent, "vllm")
    assert load_series(file.parent, "vllm", begun=False).patches == ()
    load_project(file=file)
    with pytest.raises(ProjectError, match="patches/vllm/series"):  # a mounted checkout's, too
        series_of(load_project(file=file).project.profiles["dev"], file.parent)


# --- the local file ---------------------------------------------------------------------------------------------------

MOUNTED = HEAD + "    sources: {vllm: " + SOURCE % "origin: {checkout: ../v}" + "}\n"


def test_the_local_file_may_name_places_of_the_machine(tmp_path: Path) -> None:
    local = "defaults: {sources: {vllm: {origin: {checkout: /home/me/vllm}}}}\nprofiles: {dev: {gpu: none}}\n"
    file = project(tmp_path, MOUNTED, local)
    profile = load_project(file=file).project.profiles["dev"]
    assert str(profile.sources["vllm"].origin.checkout) == "/home/me/vllm"
    assert profile.gpu.value == "none"
    assert str(load_project(file=file, local=False).project.profiles["dev"].sources["vllm"].origin.checkout) == "../v"


@pytest.mark.parametrize(
    ("local", "message", "hint"),
    [
        ("instance: x\n", "unknown key", "known: version, name, default_profile, defaults, profiles"),
        ("services: {}\n", "unknown key", "below `defaults:`"),
        ("profiles: {dve: {}}\n", "profile 'dve' does not exist; overrides can't add it", "did you mean `dev`?"),
        ("profiles: {dev: {extends: prod}}\n", "cannot change what a profile extends", ""),
        ("profiles: {dev: {gpu: x}}\n", "expected one of auto", ""),
        ("version: 2\n", "2 is out of range (1 to 1)", ""),
        ("a: [\n", "is not YAML", ""),
    ],
)
def test_a_bad_local_file(tmp_path: Path, local: str, message: str, hint: str) -> None:
    file = project(tmp_path, MOUNTED, local or "\n")
    problem = only(file)
    assert message in problem.message
    assert hint in problem.hint
    assert problem.place is not None
    assert problem.place.file.endswith("envgen.local.yaml")


def test_problems_of_both_files_come_together(tmp_path: Path) -> None:
    found = problems(project(tmp_path, MOUNTED + "    ipc: x\n", "profiles: {dev: {gpu: x}}\n"))
    assert len(found) == 2


def test_a_local_default_that_breaks_a_profile_is_an_error_there(tmp_path: Path) -> None:
    git = SOURCE % "origin: {git: https://h/x, ref: main}"
    text = HEAD.replace("development", "production") + "    sources: {vllm: " + git + "}\n"
    problem = only(project(tmp_path, text, "defaults: {sources: {vllm: {origin: {checkout: /home/me/vllm}}}}\n"))
    assert "a production profile cannot mount checkouts" in problem.message and "below `profiles:`" in problem.hint
    child = "    services: {web: {command: [x]}}\n  small: {extends: dev, services: {web: null}}\n"
    own = "profiles: {dev: {services: {web: {working_dir: /w}}}}\n"
    found = load_project(file=project(tmp_path, HEAD + child, own)).project.profiles
    assert str(found["dev"].services["web"].working_dir) == "/w" and not found["small"].services


LAYERS = (
    HEAD.replace("development", "production")
    + """\
    sources: {vllm: {package: vllm, distribution: vllm, mount: /w/vllm, origin: {wheel: vllm==1}}}
    services: {web: {command: [x], args: {a: 1, b: 1}}}
  child:
    extends: dev
    mode: development
    sources: {vllm: {origin: {checkout: ../vllm}}}
    services: {web: {args: {a: 2}}}
"""
)


def test_a_local_change_of_the_extended_profile_gives_way_to_the_profiles_own_words(tmp_path: Path) -> None:
    over = "sources: {vllm: {origin: {wheel: vllm==2}}}, services: {web: {args: {a: 9, b: 9}}}"
    found = load_project(file=project(tmp_path, LAYERS, f"profiles: {{dev: {{{over}}}}}\n")).project.profiles
    assert str(found["dev"].sources["vllm"].origin.wheel) == "vllm==2"
    child = found["child"]
    origin, web = child.sources["vllm"].origin, child.services["web"]
    assert str(origin.checkout) == "../vllm" and origin.wheel is None
    assert str(child.sources["vllm"].binaries) == "vllm==2"  # its checkout lies on the wheel of `dev`
    assert dict(web.args) == {"a": "2", "b": "9"}
    mine = "child: {sources: {vllm: {origin: {wheel: vllm==3}}}, mode: production}"
    found = load_project(file=project(tmp_path, LAYERS, f"profiles: {{dev: {{{over}}}, {mine}}}\n")).project.profiles
    assert str(found["child"].sources["vllm"].origin.wheel) == "vllm==3"


def test_a_machine_of_the_local_file_says_what_it_lacks(tmp_path: Path) -> None:
    file = project(tmp_path, HEAD, "defaults: {nodes: {a: {context: x}, b: {address: 10.0.0.2}}}\n")
    assert sorted(str(one.place and one.place.key) + " " + one.message for one in problems(file)) == [
        "nodes.a.address is required", "nodes.a.interface is required", "nodes.b.interface is required",
    ]  # fmt: skip


# --- without a GPU ----------------------------------------------------------------------------------------------------


def test_cuda_is_not_required_without_a_gpu(tmp_path: Path) -> None:
    text = "version: 1\nname: demo\nprofiles:\n  dev: {mode: production, base: {image: debian:12}, gpu: GPU}\n"
    found = load_project(file=project(tmp_path, text.replace("GPU", "none"))).project.profiles["dev"]
    rendered = render_profile(found).files["Dockerfile"].decode()
    assert "CUDA" not in rendered.replace("CMAKE_CUDA_COMPILER_LAUNCHER", "") and "ARCH_LIST" not in rendered
    problem = only(project(tmp_path, text.replace("GPU", "auto")))
    assert problem.message == "is required" and "gpu: none" in problem.hint


def test_a_local_file_with_everything_commented_out_changes_nothing(tmp_path: Path) -> None:
    file = project(tmp_path, MOUNTED, "# defaults: {gpu: none}\n")
    assert load_project(file=file).project == load_project(file=file, local=False).project


def test_the_local_file_names_the_default_profile_of_this_machine(tmp_path: Path) -> None:
    file = project(tmp_path, MOUNTED + "  prod: {mode: production}\n", "default_profile: prod\n")
    assert load_project(file=file).project.default_profile == "prod"
    assert load_project(file=file, local=False).project.default_profile == "dev"
    project(tmp_path, file.read_text(), "default_profile: prot\n")
    assert (found := only(file)).hint == "did you mean `prod`?; known: dev, prod"
    assert str(found.place).endswith("envgen.local.yaml:1:18: default_profile")


@pytest.mark.parametrize("value", ["later", "3", "[a]"])
def test_a_profile_that_is_no_mapping_is_the_only_problem(tmp_path: Path, value: str) -> None:
    """Also of those that extend it, which lack what it would have."""
    text = f"version: 1\nname: demo\nprofiles:\n  prod: {value}\n  dev: {{extends: prod, mode: development}}\n"
    for local in ("", "default_profile: dev\n"):
        assert only(project(tmp_path, text, local)).message.startswith("expected a mapping, found ")
