"""Which grant decides, and which teams groups lead to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.access.grants import MOST_GROUPS, Grant, Grants, known_groups
from gpucost.access.keys import KEY_ID
from gpucost.access.principal import Method, Role
from gpucost.domain.scope import EVERYTHING, Scope

NAMES = st.text(min_size=1, max_size=12)


def principal_of(
    *grants: Grant, name: str = "ada", groups: tuple[str, ...] = ()
) -> tuple[Role, Scope] | None:
    found = Grants(grants).principal(name, groups, Method.OIDC)
    return None if found is None else (found.role, found.scope)


def viewer(*teams: str, clusters: frozenset[str] | None = None) -> tuple[Role, Scope]:
    return Role.VIEWER, Scope(frozenset(teams), clusters)


@pytest.mark.parametrize(
    ("grant", "groups", "expected"),
    [
        (Grant(frozenset({"ada"}), role=Role.FINANCE), (), (Role.FINANCE, EVERYTHING)),
        (Grant(frozenset({"Ada"}), role=Role.FINANCE), (), None),
        (Grant(frozenset({"ad"}), role=Role.FINANCE), (), None),
        (Grant(groups=("x", "fin"), role=Role.FINANCE), ("fin",), (Role.FINANCE, EVERYTHING)),
        (Grant(groups=("fin",), role=Role.FINANCE), ("finance", "Fin"), None),
        (Grant(groups=("fin*",), role=Role.FINANCE), ("finance",), (Role.FINANCE, EVERYTHING)),
        (Grant(groups=("fin*",), role=Role.FINANCE), ("a-fin",), None),
        (Grant(groups=("f.n",), role=Role.FINANCE), ("fin",), None),
        (Grant(groups=("*",), role=Role.METRICS), ("x",), (Role.METRICS, EVERYTHING)),
        (Grant(groups=("*",), role=Role.METRICS), (), None),
        (Grant(groups=("x",), teams=frozenset({"a"})), ("x",), viewer("a")),
        (
            Grant(groups=("x",), teams=frozenset({"a"}), clusters=frozenset({"c"})),
            ("x",),
            viewer("a", clusters=frozenset({"c"})),
        ),
        (Grant(team_groups="gpu-{team}-members"), ("gpu-a-members", "gpu-b-members", "x"), viewer("a", "b")),
        (
            Grant(team_groups="gpu-{team}-members", teams=frozenset({"c"})),
            ("gpu-a-members",),
            viewer("a", "c"),
        ),
        (Grant(team_groups="{team}"), ("a",), viewer("a")),
        (Grant(team_groups="g-{team}"), ("g-", "x-g-a"), None),
        (Grant(team_groups="aa{team}aa"), ("aaa", "aaaa"), None),
        (Grant(team_groups="g-{team}"), ("g-__unallocated__",), None),
        (Grant(team_groups="g-{team}"), ("g-a\n", "g- ", "g-\u202ea"), None),
        (Grant(groups=("lead",), team_groups="g-{team}", role=Role.TEAM_ADMIN), ("g-a",), None),
        (Grant(groups=("lead",), team_groups="g-{team}", role=Role.TEAM_ADMIN), ("lead",), None),
        (
            Grant(groups=("lead",), team_groups="g-{team}", role=Role.TEAM_ADMIN),
            ("lead", "g-a"),
            (Role.TEAM_ADMIN, Scope(frozenset({"a"}))),
        ),
    ],
)
def test_one_grant(grant: Grant, groups: tuple[str, ...], expected: tuple[Role, Scope] | None) -> None:
    assert principal_of(grant, groups=groups) == expected


def test_the_first_that_fits_decides() -> None:
    admins = Grant(groups=("gpu-admins",), role=Role.ADMIN)
    leads = Grant(groups=("gpu-leads",), team_groups="gpu-{team}-members", role=Role.TEAM_ADMIN)
    members = Grant(team_groups="gpu-{team}-members")
    grants = (admins, leads, members)
    assert principal_of(*grants, groups=("gpu-a-members", "gpu-admins")) == (Role.ADMIN, EVERYTHING)
    assert principal_of(*grants, groups=("gpu-a-members", "gpu-leads")) == (
        Role.TEAM_ADMIN,
        Scope(frozenset({"a"})),
    )
    assert principal_of(*grants, groups=("gpu-a-members",)) == viewer("a")
    assert principal_of(*grants, groups=("others",)) is None
    assert principal_of(groups=("gpu-admins",)) is None, "nothing is granted by default"


@given(NAMES, st.sampled_from([Method.OIDC, Method.KUBERNETES]))
def test_nobody_passes_for_an_api_key_or_for_somebody_of_another_kind(name: str, method: Method) -> None:
    found = Grants((Grant(frozenset({name}), role=Role.ADMIN),)).principal(name, (), method)
    assert found is not None
    assert not KEY_ID.fullmatch(found.id)
    assert found.id.partition(":") == (method.value, ":", name)
    assert found.method is method


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4), NAMES)
def test_groups_never_give_more_than_they_name(groups: list[str], teams: list[str], name: str) -> None:
    found = Grants((Grant(teams=frozenset(teams), team_groups="g-{team}"),)).principal(
        name, groups, Method.OIDC
    )
    named = {group[2:] for group in groups if group.startswith("g-")}
    assert found is None or (found.scope.teams or set()) <= named | set(teams)


@pytest.mark.parametrize(
    ("claim", "groups"),
    [
        (["a", "b"], ("a", "b")),
        ("a", ("a",)),
        ("a b", ("a b",)),
        (None, ()),
        ({"a": 1}, ()),
        (["a", 1, None, ["b"], "c\n", "", "d" * 254, "e\u200b", "f\ud800"], ("a",)),
        (["a"] * (MOST_GROUPS + 5), ("a",) * MOST_GROUPS),
    ],
)
def test_groups_of_a_claim(claim: object, groups: tuple[str, ...]) -> None:
    assert known_groups(claim) == groups
