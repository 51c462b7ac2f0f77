"""`pull` and `lock` blame registry and network in the same words, whichever program reports the trouble."""

from __future__ import annotations

import pytest

from envgen.lock.servers import registry_error
from envgen.profile.values import ImageRef

IMAGE = ImageRef.parse("nvcr.io/nvidia/pytorch:25.12-py3")
NETWORK = "check the network and its proxy"


@pytest.mark.parametrize(
    ("docker", "buildx", "message", "hint"),
    [
        ('Error response from daemon: Get "https://nvcr.io/v2/": dial tcp: lookup nvcr.io on 1.2.3.4:53: no such host',
         'failed to do request: Head "https://nvcr.io/v2/x/manifests/1": dial tcp: lookup nvcr.io: no such host',
         "nvcr.io cannot be reached: ", NETWORK),
        ('Error response from daemon: Get "https://nvcr.io/v2/": net/http: TLS handshake timeout',
         "failed to do request: net/http: TLS handshake timeout", "nvcr.io cannot be reached: ", NETWORK),
        ("Error response from daemon: unauthorized: authentication required",
         "unexpected status from HEAD request: 401 Unauthorized", "nvcr.io needs a login, or has no such image",
         "`docker login nvcr.io`"),
        ("Error response from daemon: manifest for nvcr.io/nvidia/pytorch:x not found: manifest unknown",
         "nvcr.io/nvidia/pytorch:x: not found", "nvcr.io has no such image",
         "check the name, and that the tag still exists"),
        ("Error response from daemon: toomanyrequests: You have reached your pull rate limit",
         "unexpected status: 429 Too Many Requests", "nvcr.io refuses more requests for now (429)", "try again later"),
    ],
)  # fmt: skip
def test_one_cause_has_one_sentence(docker: str, buildx: str, message: str, hint: str) -> None:
    for words in (docker, buildx):
        (problem,) = registry_error(words, IMAGE, hint="unknown").problems
        assert problem.message.startswith(message) and problem.hint.startswith(hint)


def test_other_words_stay_as_they_are() -> None:
    (problem,) = registry_error("no space left on device", IMAGE, hint="docker system df").problems
    assert (problem.message, problem.hint) == ("no space left on device", "docker system df")
