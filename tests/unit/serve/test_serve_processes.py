"""Reading /proc/PID/stat: names with blanks and brackets, zombies, what is not a process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envgen.serve.crash import listed, parse

STAT = "{pid} ({name}) {state} {parent} {group} 6 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 9 0 900 1000000 256 18446744073709"


def line(pid: int, name: str, parent: int, state: str = "S", command: str = "", group: int = 6) -> str:
    return STAT.format(pid=pid, name=name, state=state, parent=parent, group=group) + "\t" + command


def test_processes_with_a_zombie() -> None:
    found = list(
        parse(
            [
                line(1, "docker-init", 0, command="/sbin/docker-init -- vllm serve "),
                line(6, "vllm", 1, command="vllm serve model"),
                line(70, "VLLM::EngineCor", 6, "Z"),
                line(90, "sleep", 4242, command="sleep 9"),
            ]
        )
    )
    assert [one.zombie for one in found] == [False, False, True, False]
    assert found[0].memory == 256 * 4096
    rows = listed(found).splitlines()
    assert "/sbin/docker-init -- vllm serve" in rows[1]
    assert rows[3].split()[:2] == ["70", "6"] and rows[3].endswith("  [VLLM::EngineCor]  <-- zombie")
    assert rows[-1] == "4 processes, 1 of them zombies"
    assert "sleep 9" in rows[4]


def test_what_is_no_process_is_left_out() -> None:
    assert list(parse(["", "sh: cat: not found", "12 (x) S", "x (y) " + "1 " * 30, line(3, "ok", 1)[:40]])) == []


@given(st.text(st.characters(exclude_characters="\n\t"), max_size=15), st.integers(1, 1 << 22))
def test_any_name_of_a_program(name: str, pid: int) -> None:
    (one,) = parse([line(pid, name, 1, command="x")])
    assert (one.pid, one.name, one.state, one.parent) == (pid, name, "S", 1)


@given(st.lists(st.text(max_size=80)))
def test_nothing_makes_it_fail(lines: list[str]) -> None:
    listed(list(parse(lines)))
