"""Which grant decides, and which teams groups lead to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.access.grants import MOST_GROUPS, AccessGrant, GroupGrants, known_groups
from gpucost.access.keys import KEY_ID
from gpucost.access.principal import AccessRole, AuthenticationMethod
from gpucost.domain.scope import EVERYTHING, Scope

NAMES = st.text(min_size=1, max_size=12)


def principal_of(
    *grants: AccessGrant, name: str = "ada", groups: tuple[str, ...] = ()
) -> tuple[AccessRole, Scope] | None:
    found = GroupGrants(grants).principal(name, groups, AuthenticationMethod.OIDC)
    return None if found is None else (found.role, found.scope)


def viewer(*teams: str, clusters: frozenset[str] | None = None) -> tuple[AccessRole, Scope]:
    return AccessRole.VIEWER, Scope(frozenset(teams), clusters)


@pytest.mark.parametrize(
    ("grant", "groups", "expected"),
    [
        (AccessGrant(frozenset({"ada"}), role=AccessRole.FINANCE), (), (AccessRole.FINANCE, EVERYTHING)),
        (AccessGrant(frozenset({"Ada"}), role=AccessRole.FINANCE), (), None),
        (AccessGrant(frozenset({"ad"}), role=AccessRole.FINANCE), (), None),
        (
            AccessGrant(groups=("x", "fin"), role=AccessRole.FINANCE),
            ("fin",),
            (AccessRole.FINANCE, EVERYTHING),
        ),
        (AccessGrant(groups=("fin",), role=AccessRole.FINANCE), ("finance", "Fin"), None),
        (
            AccessGrant(groups=("fin*",), role=AccessRole.FINANCE),
            ("finance",),
            (AccessRole.FINANCE, EVERYTHING),
        ),
        (AccessGrant(groups=("fin*",), role=AccessRole.FINANCE), ("a-fin",), None),
        (AccessGrant(groups=("f.n",), role=AccessRole.FINANCE), ("fin",), None),
        (AccessGrant(groups=("*",), role=AccessRole.METRICS), ("x",), (AccessRole.METRICS, EVERYTHING)),
        (AccessGrant(groups=("*",), role=AccessRole.METRICS), (), None),
        (AccessGrant(groups=("x",), teams=frozenset({"a"})), ("x",), viewer("a")),
        (
            AccessGrant(groups=("x",), teams=frozenset({"a"}), clusters=frozenset({"c"})),
            ("x",),
            viewer("a", clusters=frozenset({"c"})),
        ),
        (
            AccessGrant(team_groups="gpu-{team}-members"),
            ("gpu-a-members", "gpu-b-members", "x"),
            viewer("a", "b"),
        ),
        (
            AccessGrant(team_groups="gpu-{team}-members", teams=frozenset({"c"})),
            ("gpu-a-members",),
            viewer("a", "c"),
        ),
        (AccessGrant(team_groups="{team}"), ("a",), viewer("a")),
        (AccessGrant(team_groups="g-{team}"), ("g-", "x-g-a"), None),
        (AccessGrant(team_groups="aa{team}aa"), ("aaa", "aaaa"), None),
        (AccessGrant(team_groups="g-{team}"), ("g-__unallocated__",), None),
        (AccessGrant(team_groups="g-{team}"), ("g-a\n", "g- ", "g-\u202ea"), None),
        (AccessGrant(groups=("lead",), team_groups="g-{team}", role=AccessRole.TEAM_ADMIN), ("g-a",), None),
        (AccessGrant(groups=("lead",), team_groups="g-{team}", role=AccessRole.TEAM_ADMIN), ("lead",), None),
        (
            AccessGrant(groups=("lead",), team_groups="g-{team}", role=AccessRole.TEAM_ADMIN),
            ("lead", "g-a"),
            (AccessRole.TEAM_ADMIN, Scope(frozenset({"a"}))),
        ),
    ],
)
def test_one_grant(
    grant: AccessGrant, groups: tuple[str, ...], expected: tuple[AccessRole, Scope] | None
) -> None:
    assert principal_of(grant, groups=groups) == expected


def test_the_first_that_fits_decides() -> None:
    admins = AccessGrant(groups=("gpu-admins",), role=AccessRole.ADMIN)
    leads = AccessGrant(groups=("gpu-leads",), team_groups="gpu-{team}-members", role=AccessRole.TEAM_ADMIN)
    members = AccessGrant(team_groups="gpu-{team}-members")
    grants = (admins, leads, members)
    assert principal_of(*grants, groups=("gpu-a-members", "gpu-admins")) == (AccessRole.ADMIN, EVERYTHING)
    assert principal_of(*grants, groups=("gpu-a-members", "gpu-leads")) == (
        AccessRole.TEAM_ADMIN,
        Scope(frozenset({"a"})),
    )
    assert principal_of(*grants, groups=("gpu-a-members",)) == viewer("a")
    assert principal_of(*grants, groups=("others",)) is None
    assert principal_of(groups=("gpu-admins",)) is None, "nothing is granted by default"


@given(NAMES, st.sampled_from([AuthenticationMethod.OIDC, AuthenticationMethod.KUBERNETES]))
def test_nobody_passes_for_an_api_key_or_for_somebody_of_another_kind(
    name: str, method: AuthenticationMethod
) -> None:
    found = GroupGrants((AccessGrant(frozenset({name}), role=AccessRole.ADMIN),)).principal(name, (), method)
    assert found is not None
    assert not KEY_ID.fullmatch(found.id)
    assert found.id.partition(":") == (method.value, ":", name)
    assert found.method is method


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4), NAMES)
def test_groups_never_give_more_than_they_name(groups: list[str], teams: list[str], name: str) -> None:
    found = GroupGrants((AccessGrant(teams=frozenset(teams), team_groups="g-{team}"),)).principal(
        name, groups, AuthenticationMethod.OIDC
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
