"""What an ssh:// address becomes: the words of an ssh, and never an option of one."""

from __future__ import annotations

import pytest

from envgen.engine.endpoint import SshAddress
from envgen.errors import EngineError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ssh://spark", SshAddress("spark")),
        ("ssh://me@Spark.Local:2222", SshAddress("Spark.Local", "me", 2222)),
        ("ssh://spark/run/user/1000/docker.sock", SshAddress("spark", socket="/run/user/1000/docker.sock")),
        ("ssh://spark/", SshAddress("spark")),
    ],
)
def test_addresses(text: str, found: SshAddress) -> None:
    assert SshAddress.parse(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "ssh://", "ssh:///x", "ssh://-oProxyCommand=x", "ssh://-x@host", "ssh://%2DoProxyCommand=x", "ssh://a%20b",
        "ssh://u%0A@host", "ssh://me:secret@host", "ssh://host:x", "ssh://host:99999", "ssh://host?x", "ssh://host#x",
        "ssh://host/a:b",
    ],
)  # fmt: skip
def test_what_ssh_would_misread_is_refused(text: str) -> None:
    with pytest.raises(EngineError):
        SshAddress.parse(text)


def test_nothing_is_asked_and_no_key_is_waved_through() -> None:
    words = SshAddress.parse("ssh://me@spark:22").argv("/l:/r")
    assert words[-3:] == ["--", "spark", "cat"] and words[words.index("-l") + 1] == "me"
    assert "BatchMode=yes" in words and "ControlMaster=no" in words
    assert not [word for word in words if "HostKey" in word or "KnownHosts" in word]
