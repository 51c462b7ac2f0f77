"""Secrets of every common kind, made up on the spot, each as it stands in real files; and what must survive."""

from __future__ import annotations

import base64
import random
import string

_DICE = random.Random(20)


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_DICE.choice(alphabet) for _ in range(count))


UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
_JWT = "eyJ" + letters(20) + "." + "eyJ" + letters(40) + "." + letters(43)
_DOCKER = base64.b64encode(f"alice:{letters(20)}".encode()).decode()
_PEM = "\n".join(letters(64) for _ in range(6))

# kind -> (the text that holds it, the secret in it)
_MADE: dict[str, tuple[str, str]] = {
    "hugging face token": ("login with {} worked", "hf_" + letters(34)),
    "aws access key": ("aws configure set {} x", "AKIA" + letters(16, UPPER)),
    "aws secret key": ("AWS_SECRET_ACCESS_KEY={}", letters(40)),
    "github token": ("remote: {} rejected", "ghp_" + letters(36)),
    "github fine-grained": ("token is {}", "github_pat_" + letters(60)),
    "gitlab token": ("PRIVATE {} end", "glpat-" + letters(20)),
    "bearer header": ("> Authorization: Bearer {}", letters(40)),
    "basic header in json": ('{{"Authorization": "Basic {}"}}', base64.b64encode(letters(24).encode()).decode()),
    "url with user and password": ("cloning https://alice:{}@git.example.org/x.git", letters(16)),
    "url with a token alone": ("fetch https://{}@git.example.org/x.git", letters(24)),
    "signed url": ("GET https://s3.example.org/x?X-Amz-Signature={}&a=b", letters(64, HEX)),
    "private key": ("-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----", _PEM),
    "docker auth": ('{{"auths": {{"nvcr.io": {{"auth": "{}"}}}}}}', _DOCKER),
    "docker identity token": ('  "identitytoken": "{}",', letters(40)),
    "env value of a secret-like name": ("MY_SERVICE_PASSWORD={}", "correct-horse!" + letters(5)),
    "yaml value of a secret-like name": ("    VLLM_API_KEY: {}", letters(12)),
    "quoted env value with spaces": ('export DB_PASSWORD="two {} words"', letters(10)),
    "json in json": ('"{{\\"api_key\\": \\"{}\\"}}"', letters(20)),
    "jwt": ("cookie was {}", _JWT),
    "nvidia api key": ("NGC: {}", "nvapi-" + letters(60)),
    "openai key": ("using {}", "sk-proj-" + letters(40)),
    "slack token": ("post with {}", "xoxb-" + letters(12, string.digits) + "-" + letters(24)),
    "google key": ("maps {}", "AIza" + letters(35)),
    "pypi token": ("upload as {}", "pypi-AgEI" + letters(60)),
    "npm token": ("//registry.npmjs.org/:_authToken={}", "npm_" + letters(36)),
    "docker hub token": ("login {}", "dckr_pat_" + letters(27)),
    "wandb key": ("WANDB_API_KEY: '{}'", letters(40, HEX)),
    "command line": ("vllm serve m --api-key {} --port 8000", letters(22)),
    "command line as a list": ('["vllm", "--api-key", "{}"]', letters(22)),
    "cookie": ("Set-Cookie: session={}; Path=/", letters(30)),
    "netrc": ("machine git.example.org login alice password {}", letters(14)),
    "slack webhook": ("https://hooks.slack.com/services/{}", letters(9) + "/" + letters(24)),
    "age key": ("{}", "AGE-SECRET-KEY-1" + letters(58, UPPER)),
}
PLANTED = {kind: (text.format(secret), secret) for kind, (text, secret) in _MADE.items()}

# What a reader of a diagnosis needs, and what looks like a secret without being one.
KEPT = (
    "PWD=/workspace/checkout",  # the shell's own
    "max_tokens=512 and tokens per second: 380.5",
    "--tokenizer openai/gpt-oss-20b --max-num-batched-tokens 8192",
    "tokenizer: /models/tiny/tokenizer.json",
    "image sha256:1dc787f5c6264fcc1c99809f99b84823e73ed4588d5a581b94290fc2a8fecff8",
    "commit b17039bccc17b94a2ea107272ad7bc93508708df",
    "FLASHINFER_CUDA_ARCH_LIST=12.1a",
    "/root/.cache/flashinfer/0.5.3/121a/cached_ops/page/page.so",
    "GET https://pypi.example.org/simple/vllm/ 200",
    "git@github.com:vllm-project/vllm.git",
    "secrets: [HF_TOKEN]",
    "    - ${HF_TOKEN:-}",
    "HF_TOKEN=$HF_TOKEN",
    "num_key_value_heads=8, key_cache, kv_cache_dtype=auto",
    "Executing op: basic arithmetic, bearer of news",
    "INFO 08-08 08:01:25 [core.py:216] init engine took 196.18 seconds",
    "author = none; password: null",
)
