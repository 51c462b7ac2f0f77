"""Checks on variables and secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envgen.profile.report import Report
from envgen.profile.tree import near

# Variables that envgen sets itself, and the key that decides each. Written twice, they would drift.
DERIVED: Mapping[str, str] = {
    "PYTHONPATH": "python_path",
    "FLASHINFER_CUDA_ARCH_LIST": "cuda.arch_list",
    "TORCH_CUDA_ARCH_LIST": "cuda.torch",
    "CUDA_HOME": "cuda.home",
    "MAX_JOBS": "build.max_jobs",
    "FLASHINFER_NVCC_THREADS": "build.nvcc_threads",
    "NVCC_THREADS": "build.nvcc_threads",
    "TRITON_PTXAS_PATH": "cuda.home",
    "TIKTOKEN_ENCODINGS_BASE": "tiktoken.directory",
    "NVIDIA_VISIBLE_DEVICES": "gpu",
    "NVIDIA_DRIVER_CAPABILITIES": "gpu",
    "SSL_CERT_FILE": "network.ca_certificates",
    "REQUESTS_CA_BUNDLE": "network.ca_certificates",
    "CURL_CA_BUNDLE": "network.ca_certificates",
    "PIP_CERT": "network.ca_certificates",
    "HTTP_PROXY": "network.pass_proxy",
    "HTTPS_PROXY": "network.pass_proxy",
    "NO_PROXY": "network.pass_proxy",
    "http_proxy": "network.pass_proxy",
    "https_proxy": "network.pass_proxy",
    "no_proxy": "network.pass_proxy",
}
# Caches whose program must be told where they are, wherever the profile puts them:
# variable -> folder below the cache; torch's own defaults would lie in /tmp.
CACHE_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "ccache": {"CCACHE_DIR": ""},
    "huggingface": {"HF_HOME": ""},
    "torch": {"TORCH_HOME": "", "TORCHINDUCTOR_CACHE_DIR": "/inductor", "TORCH_EXTENSIONS_DIR": "/extensions"},
    "triton": {"TRITON_CACHE_DIR": ""},
    "uv": {"UV_CACHE_DIR": ""},
    "vllm": {"VLLM_CACHE_ROOT": ""},
}
_CACHE_OF = {variable: cache for cache, variables in CACHE_VARIABLES.items() for variable in variables}
_CACHE_OF["FLASHINFER_WORKSPACE_BASE"] = "flashinfer"


def check(report: Report) -> None:
    """Note what is wrong with variables and secrets."""
    secrets = report.profile.secrets
    for path, name in _variables(report):
        key = DERIVED.get(name, "")
        if _CACHE_OF.get(name) in report.profile.caches:
            key = f"caches.{_CACHE_OF[name]}.path"
        if key:
            report.problem(path, f"envgen sets {name} itself", f"use the key {key}", at_key=True)
        elif name.startswith("ENVGEN_"):
            report.problem(
                path, f"{name}: names that begin with ENVGEN_ are envgen's own", "choose another", at_key=True
            )
        if name in secrets:
            hint = "leave it in `secrets` alone: its value comes from your shell when a service starts"
            report.problem(path, f"{name} is also in `secrets`", hint, at_key=True)
    for number, name in enumerate(secrets):
        if name in DERIVED:
            report.problem(("secrets", str(number)), f"envgen sets {name} itself", f"use the key {DERIVED[name]}")
    report.repeated(("secrets",), secrets)
    groups = list(report.profile.env)
    in_use = _groups(report, ("env_groups",), report.profile.env_groups, groups, "there is no group {!r} in env")
    for name, service in report.profile.services.items():
        path = ("services", name, "env_groups")
        used = _groups(report, path, service.env_groups, in_use, "the group {!r} is not in use in this profile")
        _contradictions(report, path, used)


def _variables(report: Report) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each variable with its path."""
    profile = report.profile
    for group, variables in profile.env.items():
        for name in variables:
            yield ("env", group, name), name
    for service_name, service in profile.services.items():
        for name in service.env:
            yield ("services", service_name, "env", name), name
    for source_name, source in profile.sources.items():
        for name in source.install.env:
            yield ("sources", source_name, "install", "env", name), name


def _groups(
    report: Report, path: tuple[str, ...], chosen: tuple[str, ...] | None, known: list[str], message: str
) -> list[str]:
    """The groups that are in use; unknown and repeated ones are noted."""
    if chosen is None:
        return known
    report.repeated(path, chosen)
    for number, group in enumerate(chosen):
        if group not in known:
            report.problem((*path, str(number)), message.format(group), near(group, known))
    return [group for group in known if group in chosen]


def _contradictions(report: Report, path: tuple[str, ...], groups: list[str]) -> None:
    """One variable with two values in the groups of one service: which one wins would be an accident."""
    first: dict[str, str] = {}
    env = report.profile.env
    for group in groups:
        for name, value in env[group].items():
            other = first.setdefault(name, group)
            if env[other][name] != value:
                hint = "put it into one group, or choose between the groups with env_groups"
                message = f"{name} is {value!r} here and {env[other][name]!r} in the group {other}"
                report.problem(("env", group, name), message, hint, at_key=True)
