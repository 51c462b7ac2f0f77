"""What a Compose file that comes with a project may not make Compose do on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.errors import ProjectError
from envgen.profile.compose_file import MOST, problems_of
from envgen.profile.load import load_project

FILE = """\
version: 1
name: p
default_profile: dev
profiles:
  dev:
    mode: development
    base: {image: "a/b:1"}
    cuda: {arch_list: 12.1a}
    compose: over.yaml
    services: {web: {command: [x]}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "compose").mkdir(parents=True)
    (folder / "envgen.yaml").write_text(FILE)
    (folder / "values.env").touch()
    (folder / "away").symlink_to("/etc")
    (tmp_path / "outside.env").touch()
    return folder


def found(root: Path, text: str) -> list[str]:
    (root / "over.yaml").write_text(text)
    return [f"{one.place} {one.message}" for one in problems_of(root / "over.yaml", root)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services:\n  web: {provider: {type: ./evil.sh}}\n", "over.yaml:2:9: provider Compose starts the program"),
        ('services: {web: {"\\x70rovider": {type: x}}}\n', "Compose starts the program"),
        ("x-a: &a {provider: {type: x}}\nservices: {web: {<<: *a}}\n", "over.yaml:1:10: provider"),
        ("services: {web: !override {provider: {type: x}}}\n", "Compose starts the program"),
        ("services: {web: {!!binary cHJvdmlkZXI=: {type: x}}}\n", "over.yaml:1:18: services.web the tag !!binary"),
        ("services: {web: {!!binary ZW52X2ZpbGU=: /etc/passwd}}\n", "the tag !!binary is not supported for a key"),
        ('secrets: {s: {!!merge "<<": {file: /etc/passwd}}}\n', "the tag !!merge is not supported for a key"),
        ("include: ['https://example.com/a.yaml']\n", "is not a plain path"),
        ("include: [{path: ['oci://example.com/a']}]\n", "is not a plain path"),
        ("include: [{path: ../over.yaml, project_directory: /}]\n", "'/' is not a file of the project"),
        ("include: nothing.yaml\n", "is not a file of the project"),
        ("services: {web: {env_file: /etc/passwd}}\n", "over.yaml:1:28 `env_file`"),
        ("services: {web: {env_file: [../values.env, ../../outside.env]}}\n", "'../../outside.env' is not a file"),
        ("services: {web: {env_file: [{path: ../away/passwd}]}}\n", "leaves the project folder"),
        ("services: {web: {env_file: ~/.netrc}}\n", "is not a plain path"),
        ("services: {web: {env_file: '${HOME}/.netrc'}}\n", "is not a plain path"),
        ("services: {web: {label_file: /etc/passwd}}\n", "`label_file`"),
        ("services: {web: {credential_spec: {file: /x}}}\n", "`credential_spec`"),
        ("services: {web: {extends: {file: /x.yaml, service: y}}}\n", "`extends`"),
        ("secrets: {s: {file: ~/.ssh/id_rsa}}\n", "`secrets`"),
        ("configs: {s: {file: ../away/passwd}}\n", "`configs`"),
        ("a: [", "is not YAML"),
        ("services: {web: {a: 1, a: 2}}\n", "already there"),
    ],
)
def test_refused_with_its_place(root: Path, text: str, message: str) -> None:
    messages = found(root, text)
    assert len(messages) == 1 and message in messages[0], messages
    with pytest.raises(ProjectError, match=r"over\.yaml"):
        load_project(root / "envgen.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n",
        "services: {web: {hostname: x, environment: {A: '${HOME}'}, volumes: !reset [], env_file: ../values.env}}\n",
        "services: {web: {extends: {service: other}}, other: {image: x}}\n",
        "secrets: {s: {environment: TOKEN}}\nx-a: &a {b: c}\nservices: {web: {<<: *a, label_file: [../values.env]}}\n",
    ],
)
def test_what_a_service_needs_is_left_alone(root: Path, text: str) -> None:
    assert found(root, text) == []


def test_files_that_it_reads_are_looked_at(root: Path) -> None:
    """Wherever Compose starts from: an included file's paths begin at its own folder."""
    (root / "more").mkdir()
    (root / "more" / "evil.yaml").write_text("services: {a: {provider: {type: x}}}\n")
    (root / "more" / "next.yaml").write_text("include: [evil.yaml]\n")
    for text in (
        "include: [../more/evil.yaml]\n",
        "include: [more/next.yaml]\n",
        "services: {web: {extends: {file: ../more/evil.yaml, service: a}}}\n",
    ):
        (message,) = found(root, text)
        assert message.startswith("more/evil.yaml:1:")
    (root / "over.yaml").write_text("include: [over.yaml]\n")  # itself: Compose says that
    assert problems_of(root / "over.yaml", root) == []


def test_a_chain_of_includes_ends(root: Path) -> None:
    for number in range(MOST + 2):
        (root / f"f{number}.yaml").write_text(f"include: [f{number + 1}.yaml]\n")
    (root / f"f{MOST + 2}.yaml").touch()
    assert [f"more than {MOST} files" in one.message for one in problems_of(root / "f0.yaml", root)] == [True]


@given(
    st.text(st.characters(codec="utf-8"))
    | st.lists(st.sampled_from(["a: ", "&x ", "*x", "{", "}", "- ", "\n", "<<: "]))
)
def test_any_text_is_taken(tmp_path_factory: pytest.TempPathFactory, text: str | list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "over.yaml").write_text("".join(text), encoding="utf-8", newline="")
    problems_of(folder / "over.yaml", folder)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mounts: {a: '../../../..:/host'}", "leaves the project folder"),
        ("mounts: {a: './away:/host'}", "is a link that leaves the project folder"),
        ("mounts: {a: '~/.ssh:/host'}", "may hold your keys and settings"),
        ("mounts: {a: '~:/host'}", "may hold your keys and settings"),
        ("mounts: {a: '~/x/../.ssh:/host'}", "may hold your keys and settings"),
        ("mounts: {a: '~/models:/host', b: './m:/b', c: '~/.cache/x:/c'}", ""),
    ],
)
def test_host_folders_of_a_committed_file(root: Path, value: str, message: str) -> None:
    (root / "over.yaml").write_text("")
    (root / "envgen.yaml").write_text(FILE.replace("command: [x]", f"command: [x], {value}"))
    if message:
        with pytest.raises(ProjectError, match=message) as caught:
            load_project(root / "envgen.yaml")
        assert "envgen.local.yaml" in str(caught.value.problems[0].hint)
        (root / "envgen.yaml").write_text(FILE)
        (root / "envgen.local.yaml").write_text(
            f"profiles: {{dev: {{services: {{web: {{{value}}}}}}}}}\n"
        )  # the user's own file
    load_project(root / "envgen.yaml")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("caches: {x: {path: /x, host: ../../..}}", "leaves the project folder"),
        ("build: {wheelhouse: ~/.ssh}", "may hold your keys"),
        ("network: {ca_certificates: ~/.ssh/id_rsa}", "may hold your keys"),
        ("network: {ca_certificates: away/passwd}", "is a link that leaves"),
        ("sources: {a: {origin: {checkout: ../../a}, package: a, distribution: a, mount: /workspace/a}}", "leaves"),
        ("sources: {a: {origin: {checkout: ../.ssh}, package: a, distribution: a, mount: /workspace/a}}", "leaves"),
        ("sources: {a: {origin: {checkout: ../a}, package: a, distribution: a, mount: /workspace/a}}", ""),
    ],
)
def test_other_paths_of_a_committed_file(root: Path, value: str, message: str) -> None:
    (root / "over.yaml").write_text("")
    (root / "envgen.yaml").write_text(FILE + f"    {value}\n")
    if message:
        with pytest.raises(ProjectError, match=message):
            load_project(root / "envgen.yaml")
    else:
        load_project(root / "envgen.yaml")
