"""Each shipped recipe, as the profile that `recipe add` makes of it, asked of the vLLM of `prod` on a GB10's 12.1.

Nothing is in a cache: the model's configuration is envgen's own copy, as for a newcomer.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from model_shapes import gpu_of, judged, refused_for_want_of_a_gpu, shown
from releases import PROFILES, TOP, Answers, Ask

from envgen.app import recipes as app
from envgen.app.predict import servers, vllm_words
from envgen.app.session import Session
from envgen.predict.judge import Verdict, backends
from envgen.predict.memory import estimate
from envgen.profile.load import load_project
from envgen.profile.service import Service
from envgen.recipes.shipped import models, shipped
from envgen.recipes.write import GB10

pytestmark = pytest.mark.nightly
RELEASE = PROFILES["prod"]
NODES = """nodes:
    spark-1: {address: 192.0.2.1, interface: eth0}
    spark-2: {address: 192.0.2.2, interface: eth0, context: spark-2}"""


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Service]:
    """The server of each recipe's profile, in a project with two machines."""
    folder = tmp_path_factory.mktemp("recipes")
    text = (TOP / "envgen.yaml").read_text(encoding="utf-8")
    (folder / "envgen.yaml").write_text(text.replace("defaults:\n", f"defaults:\n  {NODES}\n", 1), encoding="utf-8")
    shutil.copytree(TOP / "patches", folder / "patches")
    found = {}
    for name, recipe in shipped().items():
        made = app.add(Session(file=folder / "envgen.yaml"), recipe, "")
        made.write()
        profile = load_project(file=folder / "envgen.yaml", local=False).project.profiles[made.profile]
        found[name] = profile.services[servers(profile)[0]]
    return found


KERNELS = {"attention-backend": "attention", "moe-backend": "moe"}


@pytest.mark.parametrize("name", [name for name, recipe in shipped().items() if recipe.b12x])
def test_kernels_made_for_the_chip_are_accepted(
    services: dict[str, Service], ask_models: Ask, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """The variant b12x of a recipe's profile; without its draft, which needs vLLM's compiled code."""
    made = tmp_path_factory.getbasetemp() / "recipes0" / "envgen.yaml"
    profile = next(one for one in load_project(file=made, local=False).project.profiles.values()
                   if one.description == f"{shipped()[name].repo}, from the recipe {name}")  # fmt: skip
    project = load_project(file=made, local=False, profile=profile.name, variant="b12x").project
    service = project.profiles[profile.name].services[servers(profile)[0]]
    answer = ask_models(RELEASE, questions({name: service}, "12.1"))[name]
    assert not answer["refusals"], answer["refusals"]
    for flag, step in KERNELS.items():
        if flag in shipped()[name].b12x:
            assert answer["asked"][step]["backend"] == "B12X", answer["asked"]


def questions(services: dict[str, Service], capability: str) -> dict[str, dict[str, Any]]:
    """What `envgen predict` asks about each server."""
    shared = {"gpu": gpu_of(capability), "real": False, "models": dict(models())}
    return {
        name: {"words": list(vllm_words(service)), "env": dict(service.env), **shared}
        for name, service in services.items()
    }


@pytest.fixture(scope="session")
def answers(services: dict[str, Service], ask_models: Ask) -> Answers:
    """What the release answers about each recipe."""
    return ask_models(RELEASE, questions(services, "12.1"))


@pytest.mark.parametrize("capability", ["12.1", "9.0"])
def test_no_backend_is_refused_for_want_of_a_gpu(
    services: dict[str, Service], ask_models: Ask, answers: Answers, capability: str
) -> None:
    asked = answers if capability == "12.1" else ask_models(RELEASE, questions(services, capability))
    assert {name: refused for name, answer in asked.items() if (refused := refused_for_want_of_a_gpu(answer))} == {}
    assert all(answer["backends"] for answer in asked.values())


def cell(answer: dict[str, Any]) -> str:
    """An answer in the table of docs/models.md."""
    found = judged(answer)
    if found.refusals:
        return f"refused: {found.refusals[0].message.splitlines()[0]}"
    chosen = ", ".join(f"{'MoE ' if step == 'moe' else ''}{name}" for step, name in backends(answer).items())
    unasked = " and ".join(str(one["step"]) for one in answer["unasked"])
    return "; ".join(filter(None, (chosen, f"{unasked} unknown" if unasked else "")))


@pytest.mark.parametrize("name", sorted(shipped()))
def test_no_shipped_recipe_is_refused(answers: Answers, name: str) -> None:
    answer = answers[name]
    assert judged(answer).verdict in (Verdict.FITS, Verdict.UNKNOWN), shown(answer)
    assert answer["config_line"] and backends(answer), shown(answer)


def test_the_table_in_the_docs_is_what_the_release_answers(answers: Answers) -> None:
    rows = [f"| `{name}` | {cell(answer)} |" for name, answer in answers.items()]
    text = (TOP / "docs" / "models.md").read_text(encoding="utf-8")
    section = text.partition("## Kernels")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| ")][2:] == rows, "\n".join(rows)


def test_a_whole_sequence_of_each_recipe_fits_a_gb10(answers: Answers) -> None:
    for name, answer in answers.items():
        assert answer["model"]["from"] == "envgen"
        found = estimate(answer.get("size"), int(GB10 * (1 << 30)), unified=True)
        assert found is not None, (name, answer.get("size"))
        assert found.context_that_fits == found.context, name
    found = estimate(answers["gpt-oss-120b"]["size"], 120 << 30, unified=True)
    # 18 of 36 layers see everything, 8 heads of 64, two bytes; the others keep 127 tokens and two steps of 8192.
    assert found is not None and found.sequence == 18 * 2 * 8 * 64 * 2 * (131072 + 127 + 2 * 8192)
