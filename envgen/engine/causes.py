"""What failures look like: data for ``classify.py``, tried in order. What is specific and certain stands first.

A warning about the network early in a log must not hide the compiler that was killed at its end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """``patterns`` are regular expressions, searched in each line whatever its case; ``codes`` are exit codes."""

    kind: str
    summary: str
    cure: str
    patterns: tuple[str, ...]
    codes: tuple[int, ...] = ()


BUILD: tuple[Rule, ...] = (
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
        "network",
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

# Of services: these come before the rules of builds.
SERVICE: tuple[Rule, ...] = (
    Rule(
        "cuda_memory",
        "the GPU has too little free memory for this model and these settings",
        "lower gpu-memory-utilization, max-model-len or max-num-seqs, or stop what else uses the GPU (nvidia-smi)",
        (
            r"cuda out of memory",
            r"torch\.OutOfMemoryError",
            r"no available memory for the cache blocks",
            r"free memory on device .* is less than desired",
            r"larger than the maximum number of tokens that can be stored in kv cache",
            r"kv cache is needed, which is larger than the available kv cache memory",
        ),
    ),
    Rule(
        "gpu",
        "the container sees no GPU that works",
        "`envgen doctor` checks the runtime; --set gpu=none starts without a GPU",
        (
            r"could not select device driver",
            r"found no nvidia driver",
            r"no cuda gpus are available",
            r"libcuda\.so\.1: cannot open shared object",
            r"nvidia-container-cli: ",
            r"unresolvable cdi devices",
            r"failed to infer device type",
        ),
    ),
    Rule(
        "cuda_arch",
        "a kernel was not compiled for this GPU",
        "check cuda.arch_list (FP4 needs the suffix a or f), then clear the module: `envgen cache clear NAME`",
        (
            r"no kernel image is available",
            r"cvt\.e2m1x2",
            r"instruction .* not supported on \.target 'sm_",
            r"ptxas fatal",
        ),
    ),
    Rule(
        "model_access",
        "Hugging Face does not hand out this model without a token that may read it",
        "put HF_TOKEN into your shell (its name stands under `secrets`), and accept the model's licence",
        (r"GatedRepoError", r"401 client error.*huggingface", r"access to model .* is restricted"),
    ),
    Rule(
        "model_missing",
        "the model is not there",
        "check its name or path; below a mounted cache, check the host folder of that cache",
        (
            r"is not a local folder and is not a valid model identifier",
            r"RepositoryNotFoundError",
            r"cannot find (an appropriate cached snapshot folder|the requested files)",
            r"invalid repository id or local directory",
            r"LocalEntryNotFoundError",
        ),
    ),
    Rule(
        "vocabulary",
        "gpt-oss could not load its vocabulary file",
        "name it under tiktoken.encodings and build again",
        (r"HarmonyError", r"error downloading or loading vocab file"),
    ),
    Rule(
        "shared_memory",
        "/dev/shm is too small",
        "raise shm_size, or set ipc: host",
        (r"/dev/shm.*no space left", r"no space left.*/dev/shm", r"insufficient shared memory", r"bus error"),
    ),
    Rule(
        "not_installed",
        "a mounted source is not installed in this container's environment",
        "`envgen up SERVICE` installs it, unless --no-install is given; `envgen doctor` tells what is imported",
        (r"not installed yet: ", r"ModuleNotFoundError: no module named '(vllm|flashinfer)", r"PackageNotFoundError"),
    ),
    Rule(
        "arguments",
        "the program does not know one of its arguments",
        "compare services.SERVICE.args with the program's own --help",
        (r"error: unrecognized arguments", r"error: argument .*: ", r"error: the following arguments are required"),
    ),
    Rule(
        "program_missing",
        "the program of the service is not in the image",
        "check services.SERVICE.command, and that the image is built with what it needs",
        (r"executable file not found", r"exec: .*: not found", r": command not found", r"can't open file "),
        (127,),
    ),
    Rule(
        "port",
        "a port is taken",
        "stop what has it, or publish another: services.SERVICE.ports",
        (r"address already in use", r"port is already allocated"),
    ),
)
