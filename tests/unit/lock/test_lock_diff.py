"""The facts of a lock, by which two are compared."""

from __future__ import annotations

from envgen.lock.model import GitLock, ProfileLock, _sum, facts_of


def test_a_profile_without_a_base_has_the_rest_of_its_facts() -> None:
    part = ProfileLock(None, {"vllm": GitLock("https://h/v", "main", "c" * 40, "branch")}, {})
    assert any("c" * 40 in fact for fact in facts_of(part).values())
    assert not any(name.startswith("image") for name in facts_of(part))


def test_the_sum_of_packages_does_not_depend_on_their_order() -> None:
    sets = {"sets": {"pip": ["b==1", "a==1"]}, "assumes": ["torch==2", "python==3.12"]}
    same = {"sets": {"pip": ["a==1", "b==1"]}, "assumes": ["python==3.12", "torch==2"]}
    assert _sum(sets) == _sum(same) != _sum({"sets": sets["sets"]})
