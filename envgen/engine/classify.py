"""Why did it fail? Rules over the output of a failed step: a cause, the line that proves it, and what to do.

The rules are data, tried in order: what is specific and certain comes first. A warning about the network early in a log
must not hide the compiler that was killed at its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A classified failure: ``kind`` is stable for programs, the rest is for people."""

    kind: str
    summary: str
    evidence: str
    cure: str


@dataclass(frozen=True)
class Rule:
    kind: str
    summary: str
    cure: str
    patterns: tuple[str, ...]
    codes: tuple[int, ...] = ()


_NETWORK = "network"

RULES: tuple[Rule, ...] = (
    Rule(
        "no_space",
        "there is no space left on the disk of the engine",
        "free some: `docker system df` shows what takes it, `docker builder prune` removes old build caches",
        (r"no space left on device", r"\bENOSPC\b", r"disk quota exceeded", r"enough free space in /var/cache/apt"),
    ),
    Rule(
        "out_of_memory",
        "the machine ran out of memory and a program was killed",
        "",  # depends on the number of jobs, see _memory_cure
        (
            r"fatal error: killed signal terminated program",
            r"internal compiler error: killed",
            r"died due to signal 9\b",
            r"^(.*:\s*(line \d+:\s*)?)?(\d+\s+)?killed(\s.*)?$",
            r"virtual memory exhausted",
            r"cannot allocate memory",
            r"std::bad_alloc",
            r"LLVM ERROR: out of memory",
            r"\bsignal: killed\b",
            r"out of memory: kill",
            r"oom-?kill",
            r"^MemoryError$",
            r"received signal SIGKILL",
            r"exit(ed with)? (code|status):? 137",
        ),
        (137,),
    ),
    Rule(
        "patch",
        "a patch does not apply to this version of the source",
        "make the patch again for this version, or take it out of its series under patches/",
        (
            r"apply-patches: .* does not apply",
            r"patch-installed: .* does not apply",
            r"error: patch failed: ",
            r"patch does not apply",
            r"hunk #\d+ failed",
            r"corrupt patch at line",
            r"malformed patch at line",
        ),
    ),
    Rule(
        "protected_package",
        "an installation replaced a package of the base image that the profile protects",
        "name the dependency that pulls it in under pip.override, or take the package out of pip.protect",
        (r"protect: an installation broke pip\.protect", r"protect: \S+ \S+ of the base image was "),
    ),
    Rule(
        "rate_limit",
        "the registry refuses more downloads for now (rate limit)",
        "log in (`docker login`), wait, or name a mirror in base.image",
        (r"toomanyrequests", r"pull rate limit", r"429 too many requests"),
    ),
    Rule(
        "registry_auth",
        "the registry wants a login for this image",
        "`docker login REGISTRY` (nvcr.io: user $oauthtoken, an NGC API key as password), then build again",
        (
            r"pull access denied",
            r"insufficient_scope",
            r"failed to authorize",
            r"failed to fetch (oauth|anonymous) token: .*\b40[13]\b",
            r"unauthorized: authentication required",
            r"unexpected status.*\b(401 unauthorized|403 forbidden)\b",
            r"no basic auth credentials",
        ),
    ),
    Rule(
        "unknown_base",
        "the base image (or the tag of it) does not exist, or not for this platform",
        "check base.image and base.platform: `docker buildx imagetools inspect IMAGE` shows what there is",
        (
            r"manifest unknown",
            r"no match for platform in manifest",
            r"repository (name not known|does not exist)",
            r"name unknown: ",
            r"failed to resolve source metadata for .*: not found",
            r"^(ERROR: )?.*(docker\.io|nvcr\.io|ghcr\.io|quay\.io)/\S+: not found",
            r"exec format error",
        ),
    ),
    Rule(
        "tls",
        "a server's certificate was not accepted",
        "behind a company's own CA: set network.ca_certificates to its PEM file (in envgen.local.yaml)",
        (
            r"certificate[_ ]verify[_ ]failed",
            r"x509: ",
            r"ssl certificate problem",
            r"self[- ]signed certificate",
            r"unable to get local issuer certificate",
            r"invalid peer certificate",
            r"server certificate verification failed",
            r"certificate verification failed",
        ),
    ),
    Rule(
        "proxy",
        "the proxy refused, or can't be reached",
        "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY of your shell: builds get them (network.pass_proxy)",
        (
            r"proxy authentication required",
            r"received http code 40[37] from proxy",
            r"proxyconnect tcp",
            r"ProxyError",
            r"cannot connect to proxy",
            r"could not resolve proxy",
            r"unable to connect to proxy",
            r"tunnel connection failed",
        ),
    ),
    Rule(
        "git_ref",
        "the git repository has no such branch, tag or commit",
        "check the ref (or pull) of this source",
        (
            r"fetch-git: .* has no ",
            r"couldn't find remote ref",
            r"remote branch .* not found in upstream",
            r"pathspec '.*' did not match",
            r"not our ref [0-9a-f]+",
        ),
    ),
    Rule(
        "dns",
        "a host name could not be resolved",
        "check the network and the DNS server of the engine (`docker run --rm IMAGE getent hosts HOST`)",
        (
            r"could not resolve host",
            r"temporary failure in name resolution",
            r"temporary failure resolving",
            r"name or service not known",
            r"no such host",
            r"nodename nor servname provided",
            r"failed to lookup address information",
            r"dns error",
        ),
    ),
    Rule(
        _NETWORK,
        "a download broke off, or a server did not answer",
        "try again; if it stays, look at the network of the engine, its proxy and its firewall",
        (
            r"connection timed out",
            r"operation timed out",
            r"read timed out",
            r"i/o timeout",
            r"tls handshake timeout",
            r"context deadline exceeded",
            r"connection refused",
            r"connection reset by peer",
            r"network is unreachable",
            r"no route to host",
            r"could not connect to ",
            r"unable to connect to ",
            r"failed to connect to ",
            r"early eof",
            r"rpc failed; ",
            r"incompleteread",
            r"remotedisconnected",
            r"newconnectionerror",
            r"error sending request for url",
            r"unexpected eof",
            r"fetch-file: no place ",
        ),
    ),
    Rule(
        "python_package",
        "pip found no version of a package that fits",
        "check its name, its version and the Python of the base image; a wheelhouse may also lack it",
        (
            r"no matching distribution found for",
            r"no solution found when resolving",
            r"because .* was not found in the package registry",
            r"resolutionimpossible",
        ),
    ),
    Rule(
        "debian_package",
        "apt found no such package",
        "check the names under apt.build and apt.runtime against the base image's distribution",
        (r"^E: unable to locate package", r"^E: version '.*' for '.*' was not found", r"has no installation candidate"),
    ),
    Rule(
        "dockerfile",
        "Docker cannot read the Dockerfile",
        "render it again (`envgen render`); an engine that is too old does not know all of it",
        (r"dockerfile parse error", r"unknown instruction: ", r"unknown flag: "),
    ),
)

_COMPILED = tuple((rule, tuple(re.compile(p, re.IGNORECASE) for p in rule.patterns)) for rule in RULES)
_LONGEST = 2000  # of a line that is matched: one-line build logs of megabytes exist


def classify(lines: Sequence[str], *, exit_code: int | None = None, jobs: int | None = None) -> Cause | None:
    """The cause of a failure from its output; None when no rule knows it. ``jobs``: the MAX_JOBS that was in use."""
    for rule, patterns in _COMPILED:
        evidence = next((line for line in lines if any(p.search(line[:_LONGEST]) for p in patterns)), None)
        if evidence is None and exit_code in rule.codes:
            evidence = f"exit code {exit_code}"
        if evidence is not None:
            cure = _memory_cure(jobs) if rule.kind == "out_of_memory" else rule.cure
            return Cause(rule.kind, rule.summary, evidence.strip()[:400], cure)
    return None


def next_jobs(jobs: int) -> int | None:
    """Half as many jobs; None when it was one already."""
    return jobs // 2 if jobs > 1 else None


def _memory_cure(jobs: int | None) -> str:
    if jobs is None:
        return "build with fewer jobs: --max-jobs N (each CUTLASS compilation takes 5 to 10 GB)"
    fewer = next_jobs(jobs)
    if fewer is None:
        return "it ran a single job already: stop other programs, or add memory or swap"
    return f"it ran with MAX_JOBS={jobs}: build again with --max-jobs {fewer} (or a larger build.memory_per_job)"
