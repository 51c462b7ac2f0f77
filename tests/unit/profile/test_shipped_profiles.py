"""The project's own envgen.yaml and examples/from-source: what its profiles and variants ask of each release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envgen.__main__ import main
from envgen.lock.ask import locked, repositories, stale
from envgen.lock.model import load
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.unused import warnings
from envgen.render.outputs import render_profile

TOP = Path(__file__).resolve().parents[3]
PROJECTS = [
    load_project(file=folder / "envgen.yaml", local=False).project for folder in (TOP, TOP / "examples/from-source")
]
PROFILES = {name: profile for project in PROJECTS for name, profile in project.profiles.items()}
FILES = {name: project.file for project in PROJECTS for name in project.profiles}
BACKENDS = {"flashinfer": "FLASHINFER", "native": "FLASHINFER"}
RUNS = [(name, variant) for name, profile in PROFILES.items() for variant in ("", *profile.variants)]


def run(name: str, variant: str) -> Profile:
    return load_project(file=FILES[name], local=False, profile=name, variant=variant).project.profiles[name]


@pytest.mark.parametrize(
    "file",
    ["envgen.yaml", *(str(file.relative_to(TOP)) for file in TOP.glob("examples/*/envgen.yaml"))],
)
def test_no_setting_reaches_nobody(file: str) -> None:
    for name in load_project(file=TOP / file, local=False).trees:
        assert warnings(load_project(file=TOP / file, local=False, profile=name)) == ()


def test_prod_starts_without_network() -> None:
    """Its variant `flashinfer`, too: vLLM's question whether the artifactory answers is answered for it."""
    profile = PROFILES["prod"]
    assert profile.services["serve"].args["attention-config"] == '{"backend":"TRITON_ATTN"}'
    names = {name for group in profile.env.values() for name in group}
    assert "VLLM_HAS_FLASHINFER_CUBIN" not in names
    for variant in ("flashinfer", "native"):
        assert run("prod", variant).services["serve"].env["VLLM_HAS_FLASHINFER_CUBIN"] == "1"


@pytest.mark.parametrize(("name", "built", "served"), [("dev", "prod", "native"), ("source_dev", "source", "cutlass")])
def test_what_is_developed_serves_the_kernels_that_are_edited(name: str, built: str, served: str) -> None:
    """FlashInfer's; what the production profile serves is a variant of its name."""
    assert run(name, "").services["serve"] == run(built, served).services["serve"]
    assert run(name, "prod").services["serve"] == run(built, "").services["serve"]
    assert {"flashinfer", "cutlass", "native"}.isdisjoint(PROFILES[name].variants)


def test_no_line_of_the_moe_is_taken_for_the_attention_s() -> None:
    """`Using 'FLASHINFER_CUTLASS_...' Mxfp4 MoE backend` says nothing about attention."""
    for variant in ("", *PROFILES["prod"].variants):
        ready = run("prod", variant).services["serve"].ready
        assert ready is not None
        line = "Using 'FLASHINFER_CUTLASS_MXFP4_MXFP8' Mxfp4 MoE backend."
        assert not re.search(ready.expect["attention"], line)
        assert not re.search(ready.expect["moe"], "Using AttentionBackendEnum.FLASHINFER backend.")
        assert re.search(
            ready.expect["attention"], f"Using AttentionBackendEnum.{BACKENDS.get(variant, 'TRITON_ATTN')} backend."
        )


@pytest.mark.parametrize(("name", "variant"), [pair for pair in RUNS if pair[1]])
def test_variants_say_what_they_are_and_need_no_other_image(name: str, variant: str) -> None:
    assert PROFILES[name].variants[variant].description
    root = FILES[name].parent
    assert render_profile(run(name, variant), root=root).digest == render_profile(PROFILES[name], root=root).digest


def test_fork_is_pinned_to_commits() -> None:
    profile = PROFILES["fork"]
    for one in repositories(profile):
        assert re.fullmatch("[0-9a-f]{40}", one.ref), one
    assert [one.name for one in repositories(profile)] == ["flashinfer", "flashinfer/3rdparty/cutlass", "vllm"]
    assert not any(source.patches for source in profile.sources.values())


def test_fork_says_which_backends_each_variant_is_for() -> None:
    for variant in ("", *PROFILES["fork"].variants):
        serve = run("fork", variant).services["serve"]
        args = serve.args
        assert serve.ready is not None
        expected = f"[MXFP4] Using backend: {args['mxfp4-backend']}"
        assert re.search(serve.ready.expect["moe"], expected)
        assert re.search(serve.ready.expect["attention"], f"Using {args['attention-backend']} backend")
        assert not any(re.search(one, expected) for one in serve.ready.forbid.values())


def test_the_development_twin_of_source_changes_no_checkout() -> None:
    """No `prepare` runs in it, no version is made up, and it has the patches and the compilers' cache."""
    built, twin = PROFILES["source"], PROFILES["source_dev"]
    assert (twin.base, twin.pip) == (built.base, built.pip)
    assert set(twin.mounted_sources) == {"flashinfer", "vllm"} and "ccache" in twin.caches
    for name, source in twin.sources.items():
        assert (source.install.prepare, source.install.env, source.install.requires) == ((), {}, ())
        assert source.patches == built.sources[name].patches
        assert source.origin.checkout is not None and source.origin.checkout.path.startswith("../")
    assert not {str(one.origin.checkout) for one in twin.sources.values()} & {
        str(one.origin.checkout) for one in PROFILES["dev"].sources.values()
    }


def test_the_file_that_the_readme_shows_is_one(tmp_path: Path) -> None:
    """With the head that each file has, and the two values that are shortened."""
    text = (TOP / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    shown = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    shown = shown.replace("https://…", "https://example.org/o").replace("446a9538…", "'" + "4" * 64 + "'")
    (tmp_path / "patches/vllm").mkdir(parents=True)
    (tmp_path / "patches/vllm/series").write_text("")
    (tmp_path / "envgen.yaml").write_text(f"version: 1\nname: shown\n{shown}", encoding="utf-8")
    dev = load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["dev"]
    assert "12.1a" in str(dev.cuda.arch_list) and dev.build.max_jobs.count == 4
    at = [
        text.index(f"$ envgen {words}")
        for words in ("build --profile dev", "up serve", "doctor", "cache clear fused_moe_120")
    ]
    assert at == sorted(at)


def test_a_clone_has_its_lock(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For both platforms; what no server was asked for is marked, and a build checks what was assumed."""
    monkeypatch.chdir(TOP)
    assert main(["lock", "--check"]) == 0
    assert "read elsewhere" in capsys.readouterr().err
    lock = load(TOP)
    assert lock is not None
    profiles = load_project(file=TOP / "envgen.yaml", local=False).project.profiles
    for name in ("prod", "dev"):
        mine = locked(profiles[name], lock)
        assert set(mine.python) == {"linux/amd64", "linux/arm64"} and not stale(profiles[name], mine)
        assert mine.assumes == ("python==3.12",)
        assert not any(python.open for python in mine.python.values())
    for file in TOP.glob("Dockerfile*"):
        text = file.read_text("utf-8")
        assert "Not locked" not in text and "@sha256:" in text and "python==3.12" in text, file
