"""Variants: what they change, where a value then comes from, and that no image depends on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bad_project_files import HEAD

from envgen.__main__ import main
from envgen.errors import ProjectError, UsageError
from envgen.lock.ask import models_of
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile
from envgen.render.outputs import render_profile

TEXT = (
    HEAD
    + """\
    env: {A: 1}
    services:
      serve:
        command: [vllm]
        args: {attention-config: {backend: FLASHINFER, x: 1}, max-model-len: 10}
        ready: {port: 8000, model: m, expect: {moe: Marlin, attention: FLASH}}
        ports: ["8000:8000"]
    variants:
      slow:
        description: slower
        env: {B: 2}
        services:
          serve:
            args: {attention-config: {backend: TRITON_ATTN}, enforce-eager: true}
            ready: {expect: {moe: null, attention: TRITON}}
      same: {}
  prod:
    extends: dev
    dockerfile: Dockerfile.prod
    variants: {slow: {services: {serve: {args: {max-model-len: 20}}}}}
  other:
    mode: production
    dockerfile: Dockerfile.other
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "envgen.yaml").write_text(TEXT)
    return tmp_path / "envgen.yaml"


def load(file: Path, variant: str, name: str = "dev", **more: object) -> Profile:
    return select(load_project(file=file, profile=name, variant=variant, **more).project, name, variant)  # type: ignore[arg-type]


def test_a_variant_changes_what_it_says_and_nothing_else(file: Path) -> None:
    profile = load(file, "slow")
    serve = profile.services["serve"]
    assert profile.variant == "slow"
    assert serve.argv == (
        "vllm", "--attention-config", '{"backend":"TRITON_ATTN","x":1}', "--max-model-len", "10", "--enforce-eager",
    )  # fmt: skip
    assert serve.ready is not None and dict(serve.ready.expect) == {"attention": "TRITON"}
    assert list(profile.env) == ["A", "B"]
    assert load(file, "").services["serve"].argv[-1] == "10"


def test_variants_are_inherited_and_changed_like_all_else(file: Path) -> None:
    assert load(file, "slow", "prod").services["serve"].argv[-3:] == ("--max-model-len", "20", "--enforce-eager")
    assert load(file, "same").services == load(file, "").services


def test_options_and_variables_are_stronger_and_the_local_file_is_weaker(file: Path) -> None:
    (file.parent / "envgen.local.yaml").write_text(
        "profiles: {dev: {services: {serve: {args: {enforce-eager: false, max-model-len: 7}}}}}\n"
    )
    assert load(file, "slow").services["serve"].argv[-3:] == ("--max-model-len", "7", "--enforce-eager")
    set_ = ["services.serve.args.enforce-eager=false"]
    assert load(file, "slow", sets=set_).services["serve"].argv[-1] == "--no-enforce-eager"


def test_a_variant_that_is_not_there(file: Path) -> None:
    with pytest.raises(UsageError, match="profile dev has no variant 'slwo'") as caught:
        load(file, "slwo")
    assert "`slow`" in str(caught.value)
    with pytest.raises(UsageError, match="profile other has no variant 'slow'"):
        load(file, "slow", "other")


def test_a_variant_that_breaks_a_profile_is_an_error_when_used(file: Path) -> None:
    file.write_text(TEXT.replace("env: {B: 2}", "env: {MAX_JOBS: 3}"))
    assert load(file, "").variant == ""
    with pytest.raises(ProjectError) as caught:
        load(file, "slow")
    assert "envgen.yaml:19:25: env.MAX_JOBS: envgen sets MAX_JOBS itself" in str(caught.value)


def test_explain_says_which_values_a_variant_brings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "-f", str(file), "--variant", "slow", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    name = next(line for line in lines if "enforce-eager = true" in line).split("# ")[1].split(":")[0]
    flag = 'services.serve.args.attention-config = "{\\"backend\\":\\"TRITON_ATTN\\",\\"x\\":1}"'
    assert f"{flag}  # {name}:13:34" in lines
    assert f'env.B = "2"  # {name}:19:18' in lines
    assert f'services.serve.args.max-model-len = "10"  # {name}:13:78' in lines
    assert main(["config", "-f", str(file), "--variant", "slow", "--json", "--explain"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["variant"] == "slow"
    assert document["values"]["variants"]["slow"]["changes"]["services.serve.ready.expect.moe"] == "null"


def test_no_image_depends_on_a_variant(file: Path) -> None:
    plain, slow = (render_profile(load(file, name)) for name in ("", "slow"))
    assert plain.digest == slow.digest and plain.files["Dockerfile"] == slow.files["Dockerfile"]
    before, after = (one.files["compose/dev.yaml"].decode() for one in (plain, slow))
    assert "TRITON_ATTN" in after and "dev.envgen.variant" in after
    assert "TRITON_ATTN" not in before and "dev.envgen.variant" not in before


@pytest.mark.parametrize(
    ("speculative", "draft"),
    [
        ("{method: eagle3, model: acme/draft, num_speculative_tokens: 3}", "acme/draft main"),
        ("{method: eagle3, model: acme/draft, revision: v2}", "acme/draft v2"),
        ("{method: eagle3, model: /models/draft}", ""),  # a folder: nothing is fetched
        ("{method: mtp, model: acme/main}", ""),  # the checkpoint's own
        ("{method: ngram}", ""),
        ("not JSON", ""),
    ],
)
def test_a_draft_of_a_variant_is_one_of_the_service_s_models(tmp_path: Path, speculative: str, draft: str) -> None:
    service = """\
    caches: {huggingface: {path: /hf, host: hf}}
    services:
      serve: {command: [vllm, serve], model: {repo: acme/main}}
"""
    variant = f"    variants: {{draft: {{services: {{serve: {{args: {{speculative-config: {speculative}}}}}}}}}}}\n"
    (tmp_path / "envgen.yaml").write_text(HEAD + service + variant)
    plain, drafted = (load(tmp_path / "envgen.yaml", name).services["serve"] for name in ("", "draft"))
    assert [one.repo for one in plain.models] == ["acme/main"]
    found = drafted.draft
    assert (f"{found.repo} {found.revision}" if found else "") == draft
    # The lock is for all variants, which need the same image.
    locked = [f"{one.repo} {one.revision}" for one in models_of(load(tmp_path / "envgen.yaml", ""))["serve"]]
    assert locked == ["acme/main main", *([draft] if draft else [])]


STACKED = """\
    variants:
      long: {services: {serve: {args: {max-model-len: 99}}}}
      kernel: {services: {serve: {args: {attention-config: {backend: TRITON_ATTN}}, ready: {expect: {moe: null}}}}}
      other: {services: {serve: {args: {attention-config: {backend: XQA}}}}}
      none: {services: {serve: {args: {attention-config: null}}}}
"""


@pytest.fixture
def stacked(file: Path) -> Path:
    file.write_text(TEXT[: TEXT.index("    variants:")] + STACKED)
    return file


def test_two_variants_are_laid_one_over_the_other(stacked: Path) -> None:
    one, two = load(stacked, "long+kernel"), load(stacked, "kernel+long")
    assert one.services == two.services and one.variant == "long+kernel"
    argv = one.services["serve"].argv
    assert '{"backend":"TRITON_ATTN","x":1}' in argv and "99" in argv
    assert one.chosen_variant.endswith("--variant long+kernel")
    assert "XQA" in str(load(stacked, "kernel+other").services["serve"].argv)  # the last one wins


def test_an_unknown_one_of_two_is_named(stacked: Path) -> None:
    with pytest.raises(UsageError, match="has no variant 'kernal'") as refused:
        load(stacked, "long+kernal")
    assert "did you mean `kernel`?" in str(refused.value)
