"""The Hugging Face Hub: which commit a model's revision is at (https://huggingface.co/docs/hub/api)."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

import requests

from envgen.engine.base import read_json
from envgen.errors import LockError
from envgen.lock.trust import certificates
from envgen.profile.model import ModelRef

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB = "https://huggingface.co"
LIMIT = 16 << 20  # bytes: an answer lists every file of the repository
TIMEOUT = 30.0


def commit_of(model: ModelRef) -> str:
    """The commit; LockError when the hub doesn't name one. HF_ENDPOINT and HF_TOKEN are taken from the environment."""
    endpoint, token = os.environ.get("HF_ENDPOINT", HUB).rstrip("/"), os.environ.get("HF_TOKEN", "")
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"{endpoint}/api/models/{model.repo}/revision/{quote(model.revision, safe='')}"
    what = f"the model {model.repo} at {model.revision}"
    try:
        with requests.get(url, headers=headers, timeout=TIMEOUT, stream=True, verify=certificates()) as answer:
            status = answer.status_code
            body = answer.raw.read(LIMIT, decode_content=True) if status == 200 else b""
    except (requests.RequestException, OSError) as error:
        reason = str(error.__cause__ or error)[:200]
        raise LockError(f"{what}: the hub could not be asked: {reason}", hint="is the network up?") from None
    if status in (401, 403):
        raise LockError(f"{what}: the hub wants a token that may read it", hint="export HF_TOKEN=... in this shell")
    if status == 404:
        raise LockError(f"{what}: the hub has no such repository or revision", hint="check services.SERVICE.model")
    if status != 200:
        raise LockError(f"{what}: the hub answered {status}", hint="try again later")
    try:
        found = read_json(body)
    except ValueError:
        found = None
    commit = str(found.get("sha", "")) if isinstance(found, dict) else ""
    if not COMMIT.fullmatch(commit):
        raise LockError(f"{what}: the hub's answer names no commit", hint="is HF_ENDPOINT right?")
    return commit
