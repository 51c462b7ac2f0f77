"""Who has a port, from given texts of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.host import Listener, conflict, listening, owner, parse_listeners

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 34567 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11111 1 0 100 0 0 10 0
   2: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 22222 1 0 20 4 30 10 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:1F41 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 777 1
   1: 0000000000000000FFFF00000100007F:1F42 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 888 1
   2: 00000000000000000000000001000000:1F43 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 999 1
"""


def test_listening_sockets_only() -> None:
    assert parse_listeners(TCP) == (Listener("127.0.0.1", 8000, "34567"), Listener("0.0.0.0", 22, "11111"))


def test_ipv6_and_ipv4_inside_it() -> None:
    found = parse_listeners(TCP6)
    assert [(one.address, one.port) for one in found[:2]] == [("*", 8001), ("127.0.0.1", 8002)]
    assert found[2].address.startswith("[") and found[2].port == 8003


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    parse_listeners("header\n" + text)


@pytest.mark.parametrize(
    ("listener", "wanted", "taken"),
    [
        ("127.0.0.1", "", True), ("127.0.0.1", "0.0.0.0", True), ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "192.168.1.5", False), ("0.0.0.0", "192.168.1.5", True), ("*", "127.0.0.1", True),
    ],
)  # fmt: skip
def test_which_addresses_exclude_each_other(listener: str, wanted: str, taken: bool) -> None:
    assert bool(conflict([Listener(listener, 8000, "1")], 8000, wanted)) is taken
    assert conflict([Listener(listener, 8000, "1")], 8001, wanted) is None


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TCP)
    (tmp_path / "4711" / "fd").mkdir(parents=True)
    (tmp_path / "4711" / "comm").write_text("vllm\n")
    (tmp_path / "4711" / "fd" / "3").symlink_to("socket:[34567]")
    (tmp_path / "4711" / "fd" / "0").symlink_to("/dev/null")
    return tmp_path


def test_the_owner_is_named(proc: Path) -> None:
    taken = conflict(listening(proc), 8000)
    assert taken is not None
    assert owner(taken, proc) == "process 4711 (vllm)"


def test_a_process_that_we_may_not_see(proc: Path) -> None:
    taken = conflict(listening(proc), 22)
    assert taken is not None and owner(taken, proc) == "a process of another user"


def test_a_machine_without_proc(tmp_path: Path) -> None:
    assert listening(tmp_path) == ()
