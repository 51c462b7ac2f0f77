"""Where a function of a release is looked for: a package with it in any place has a user that imports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.inside.predict.uses import THINGS, Thing, origin, origins

SERVE = "entrypoints/cli/serve.py"
PARSER = Thing("make_arg_parser", (SERVE,), ("vllm.entrypoints.openai.cli_args",))


def package(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from vllm.common.cli_args import (\n    make_arg_parser,\n    other,\n)\n", "vllm.common.cli_args"),
        ("from vllm.new import make_arg_parser as made\n", "vllm.new"),
        ("from .options import make_arg_parser\n", "vllm.entrypoints.cli.options"),
        ("from ..options import make_arg_parser\n", "vllm.entrypoints.options"),
        ("from . import make_arg_parser\n", "vllm.entrypoints.cli"),
        ("def run():\n    from vllm.new import make_arg_parser\n", "vllm.new"),
        ("def make_arg_parser(parser):\n    return parser\n", "vllm.entrypoints.cli.serve"),
        ("make_arg_parser = 1 +\n", None),  # not Python
        ("# make_arg_parser was here\n", None),
    ],
)  # fmt: skip
def test_a_source_file_names_the_module_that_it_takes_a_function_from(
    tmp_path: Path, text: str, module: str | None
) -> None:
    folder = package(tmp_path, {SERVE: text})
    assert origin("make_arg_parser", str(tmp_path / SERVE), folder) == module


def test_its_user_comes_before_the_places_where_it_was(tmp_path: Path) -> None:
    folder = package(tmp_path, {SERVE: "from vllm.new import make_arg_parser\n"})
    assert list(origins(PARSER, folder)) == ["vllm.new", "vllm.entrypoints.openai.cli_args"]


def test_without_its_known_user_it_is_what_most_modules_import(tmp_path: Path) -> None:
    imports = "from vllm.new import make_arg_parser\n"
    files = {"a.py": imports, "b.py": imports, "batch.py": "from vllm.batch_args import make_arg_parser\n"}
    assert list(origins(PARSER, package(tmp_path, files))) == ["vllm.new", *PARSER.places]


def test_two_that_are_imported_as_often_are_no_answer(tmp_path: Path) -> None:
    files = {"a.py": "from vllm.x import make_arg_parser\n", "b.py": "from vllm.y import make_arg_parser\n"}
    assert list(origins(PARSER, package(tmp_path, files))) == [*PARSER.places]


def test_each_thing_has_a_place_of_last_resort(tmp_path: Path) -> None:
    for thing in THINGS.values():
        assert thing.users and list(origins(thing, str(tmp_path))) == [*thing.places] != []
