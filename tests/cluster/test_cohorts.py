"""Quota trees: cases by hand, the rules transcribed word by word, and decisions of the real scheduler."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
)
from gpucost.cluster.objects.metadata import amount, parse_quantity
from gpucost.cluster.views.cohorts import (
    QuotaNode,
    QuotaTree,
    cohort_cycles,
    quota_tree,
)
from tests.cluster.builders import cluster_queue, meta
from tests.support.recorded import KUEUE_SCHEDULER

KEY = FlavorResource("h100", "nvidia.com/gpu")


def cohort(name: str, parent: str = "", quota: FlavorQuota | None = None) -> Cohort:
    return Cohort(meta(name, ""), parent, quotas={} if quota is None else {KEY: quota})


def queue(name: str, quota: FlavorQuota, reserved: int = 0, cohort: str = "", **fields: Any) -> ClusterQueue:
    return cluster_queue(name, {KEY: quota}, cohort=cohort, reserved={KEY: FlavorUsage(reserved)}, **fields)


# By hand


def test_a_queue_without_a_cohort_has_its_own_quota_only() -> None:
    node = quota_tree([queue("a", FlavorQuota(50, borrowing_limit=0), 40)], []).queues["a"]
    assert (node.available(KEY), node.potential(KEY), node.borrowed(KEY)) == (10, 50, 0)
    assert node.borrowing_level(KEY, 11) == 0


def test_an_overcommitted_queue_has_nothing_available_and_a_cohort_less_than_nothing() -> None:
    tree = quota_tree([queue("a", FlavorQuota(8), 11, "c")], [])
    assert tree.queues["a"].available(KEY) == 0
    assert tree.cohorts["c"].available(KEY) == -3


def test_a_lending_limit_keeps_the_rest_at_home() -> None:
    # a keeps 6 of 8 and lends 2; b has 4 and uses 5: one of them is a's.
    tree = quota_tree(
        [queue("a", FlavorQuota(8, lending_limit=2), 3, "c"), queue("b", FlavorQuota(4), 5, "c")], []
    )
    a, b, c = tree.queues["a"], tree.queues["b"], tree.cohorts["c"]
    assert (a.local_quota(KEY), a.local_available(KEY)) == (6, 3)
    assert (c.subtree[KEY], c.usage[KEY], c.available(KEY)) == (6, 5, 1)
    assert (a.available(KEY), b.available(KEY)) == (4, 1)
    assert (a.potential(KEY), b.potential(KEY)) == (12, 6)
    assert (a.borrowed(KEY), b.borrowed(KEY)) == (0, 1)


def test_a_borrowing_limit_counts_what_is_borrowed_already() -> None:
    tree = quota_tree(
        [queue("a", FlavorQuota(4, borrowing_limit=3), 5, "c"), queue("b", FlavorQuota(10), 0, "c")], []
    )
    assert tree.queues["a"].available(KEY) == 2
    assert tree.queues["a"].potential(KEY) == 7


def three_levels() -> QuotaTree:
    """root (own 4) over left (lends 5) over a (nominal 8, uses 3), and right (own 2) over b (nominal 0)."""
    return quota_tree(
        [queue("a", FlavorQuota(8), 3, "left"), queue("b", FlavorQuota(0), 4, "right")],
        [
            cohort("left", "root", FlavorQuota(0, lending_limit=5)),
            cohort("right", "root", FlavorQuota(2)),
            cohort("root", quota=FlavorQuota(4)),
        ],
    )


def test_three_levels() -> None:
    tree = three_levels()
    left, right, root = (tree.cohorts[name] for name in ("left", "right", "root"))
    assert [left.subtree[KEY], right.subtree[KEY], root.subtree[KEY]] == [8, 2, 4 + 5 + 2]
    # left keeps 3 to itself, and a's use is just that; right uses two more than it has.
    assert [left.usage[KEY], right.usage[KEY], root.usage[KEY]] == [3, 4, 4]
    assert [left.available(KEY), right.available(KEY), root.available(KEY)] == [7, 7, 7]
    assert (right.borrowed(KEY), left.borrowed(KEY)) == (2, 0)
    assert [node.height for node in (left, right, root)] == [1, 1, 2]
    assert [node.name for node in tree.bottom_up][-1] == "root"


def test_how_high_one_must_borrow() -> None:
    tree = three_levels()
    a, b = tree.queues["a"], tree.queues["b"]
    assert [a.borrowing_level(KEY, each) for each in (5, 6, 12, 13)] == [0, 2, 2, 2]
    assert b.borrowing_level(KEY, 1) == 2
    tree.cohorts["right"].quotas = {KEY: FlavorQuota(2)}
    tree.cohorts["right"].subtree[KEY] = 9
    assert b.borrowing_level(KEY, 1) == 1


def test_usage_climbs_only_above_what_is_kept_local() -> None:
    tree = three_levels()
    tree.queues["a"].add_usage(KEY, 4)
    assert [tree.cohorts[name].usage[KEY] for name in ("left", "root")] == [7, 8]
    tree.queues["a"].add_usage(KEY, -6)
    assert [tree.cohorts[name].usage[KEY] for name in ("left", "root")] == [1, 4]


def test_what_is_not_active_lends_and_borrows_on() -> None:
    tree = quota_tree(
        [queue("stopped", FlavorQuota(8), 5, "c", is_active=False), queue("b", FlavorQuota(4), 0, "c")], []
    )
    assert (tree.cohorts["c"].subtree[KEY], tree.cohorts["c"].usage[KEY]) == (12, 5)
    assert tree.queues["b"].available(KEY) == 7


def test_given_usage_goes_before_status() -> None:
    tree = quota_tree([queue("a", FlavorQuota(8), 5)], [], {"a": {KEY: 2}})
    assert tree.queues["a"].available(KEY) == 6


def test_nodes_on_or_below_a_cycle_stand_alone() -> None:
    circle = [
        cohort("y", "z"),
        cohort("x", "y"),
        cohort("z", "x"),
        cohort("below", "x"),
        cohort("self", "self"),
    ]
    queues = [queue("a", FlavorQuota(8), 9, "below"), queue("b", FlavorQuota(3), 0, "fine")]
    tree = quota_tree(queues, [*circle, cohort("fine")])
    assert {name for name, node in tree.cohorts.items() if node.in_cycle} == {"x", "y", "z", "below", "self"}
    assert all(node.parent is None and not node.children for node in tree.cohorts.values() if node.in_cycle)
    assert tree.queues["a"].in_cycle
    assert tree.queues["a"].parent is None
    assert not tree.queues["b"].in_cycle
    assert len(tree.bottom_up) == 6
    assert cohort_cycles(circle) == [("self",), ("x", "y", "z")]


def test_a_deep_tree_is_no_deep_recursion() -> None:
    deep = [cohort(str(level), str(level + 1)) for level in range(3000)]
    tree = quota_tree([queue("a", FlavorQuota(8), 3, "0")], deep)
    assert tree.cohorts["3000"].subtree[KEY] == 8
    assert tree.queues["a"].available(KEY) == 5


def test_what_is_available_in_a_chain_of_cohorts_costs_one_step_each() -> None:
    deep = [cohort(str(level), str(level + 1), FlavorQuota(1)) for level in range(3000)]
    tree = quota_tree([queue("a", FlavorQuota(8), 3, "0")], deep)
    start = time.process_time()
    for _ in range(2):
        assert {node.available(KEY) for node in tree.bottom_up} == {3000 + 8 - 3}
    assert time.process_time() - start < 1
    tree.queues["a"].add_usage(KEY, 7)
    assert {node.available(KEY) for node in tree.bottom_up} == {3000 + 8 - 10}


# The rules of reference/kueue-volcano.md, 2.1, word by word: slow, recursive, without memory


@dataclass
class Literal:
    """One node; usage arrives unit by unit."""

    parent: Literal | None
    nominal: int
    borrowing: int | None
    lending: int | None
    is_queue: bool
    children: list[Literal] = field(default_factory=list)
    used: int = 0

    def subtree(self) -> int:
        return self.nominal + sum(each.subtree() - each.local() for each in self.children)

    def local(self) -> int:
        return max(0, self.subtree() - self.lending) if self.lending is not None else 0

    def add(self, amount: int) -> None:
        free = max(0, self.local() - self.used)
        self.used += amount
        if self.parent and amount > free:
            self.parent.add(amount - free)

    def free(self) -> int:
        if self.parent is None:
            found = self.subtree() - self.used
        else:
            of_parent = self.parent.free_unclamped()
            if self.borrowing is not None:
                stored, taken = self.subtree() - self.local(), max(0, self.used - self.local())
                of_parent = min(of_parent, stored - taken + self.borrowing)
            found = max(0, self.local() - self.used) + of_parent
        return max(0, found) if self.is_queue else found

    free_unclamped = free

    def most(self) -> int:
        if self.parent is None:
            return self.subtree()
        found = self.local() + self.parent.most()
        return found if self.borrowing is None else min(found, self.subtree() + self.borrowing)


amounts = st.integers(0, 12)
limits = st.none() | st.integers(0, 6)
quotas = st.builds(FlavorQuota, amounts, limits, limits)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[ClusterQueue], list[Cohort]]:
    """Cohorts whose parents have a higher number or do not exist, and queues anywhere."""
    count = draw(st.integers(0, 5))
    parents = [draw(st.sampled_from(["", "named", *map(str, range(n + 1, count))])) for n in range(count)]
    cohorts = [cohort(str(n), parent, draw(quotas)) for n, parent in enumerate(parents)]
    names = st.sampled_from(["", "named", *map(str, range(count))])
    found = [queue(f"q{n}", draw(quotas), draw(amounts), draw(names)) for n in range(draw(st.integers(1, 5)))]
    return found, draw(st.permutations(cohorts))


def literally(queues: list[ClusterQueue], cohorts: list[Cohort]) -> dict[str, Literal]:
    nodes = {"named": Literal(None, 0, None, None, False)}
    for each in sorted(cohorts, key=lambda one: one.name, reverse=True):
        quota = each.quotas[KEY]
        nodes[each.name] = Literal(
            nodes.get(each.parent), quota.nominal, quota.borrowing_limit, quota.lending_limit, False
        )
    for own in queues:
        quota = own.quotas[KEY]
        nodes[own.name] = Literal(
            nodes.get(own.cohort), quota.nominal, quota.borrowing_limit, quota.lending_limit, True
        )
    for node in nodes.values():
        if node.parent:
            node.parent.children.append(node)
    for own in queues:
        for _ in range(own.reserved[KEY].total):
            nodes[own.name].add(1)
    return nodes


def facts(node: QuotaNode) -> tuple[int, ...]:
    numbers = (node.subtree.get(KEY, 0), node.usage.get(KEY, 0), node.local_quota(KEY))
    return *numbers, node.available(KEY), node.potential(KEY)


@given(clusters())
def test_it_says_what_the_rules_say(cluster: tuple[list[ClusterQueue], list[Cohort]]) -> None:
    tree, literal = quota_tree(*cluster), literally(*cluster)
    for name, node in [*tree.queues.items(), *tree.cohorts.items()]:
        of = literal[name]
        assert facts(node) == (of.subtree(), of.used, of.local(), of.free(), of.most()), name


@given(clusters(), st.lists(st.tuples(st.integers(0, 4), st.integers(-12, 12))))
def test_usage_added_later_is_usage_known_before(
    cluster: tuple[list[ClusterQueue], list[Cohort]], changes: list[tuple[int, int]]
) -> None:
    queues, cohorts = cluster
    tree = quota_tree(queues, cohorts)
    for number, change in changes:
        node = tree.queues[f"q{number % len(queues)}"]
        node.available(KEY)
        node.add_usage(KEY, max(change, -node.usage[KEY]))
    usage = {name: dict(node.usage) for name, node in tree.queues.items()}
    again = quota_tree(queues, cohorts, usage)
    for name, node in [*tree.queues.items(), *tree.cohorts.items()]:
        assert facts(node) == facts({**again.queues, **again.cohorts}[name])


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", *"abcdefg"])))
def test_any_parents_whatever_end_in_a_tree(parents: dict[str, str]) -> None:
    cohorts = [cohort(name, parent, FlavorQuota(1)) for name, parent in parents.items()]
    tree = quota_tree([queue(f"q-{name}", FlavorQuota(2), 1, name) for name in parents], cohorts)
    on_cycles = {name for circle in cohort_cycles(cohorts) for name in circle}
    for name, node in tree.cohorts.items():
        ancestors = set()
        while name in parents and name not in ancestors:
            ancestors.add(name)
            name = parents[name]
        assert node.in_cycle == bool(ancestors & on_cycles)
    roots = [node for node in tree.cohorts.values() if node.parent is None and not node.in_cycle]
    whole = sum(1 for node in tree.cohorts.values() if not node.in_cycle and node.quotas)
    lent = sum(2 for node in tree.queues.values() if node.parent is not None)
    assert sum(root.subtree.get(KEY, 0) for root in roots) == whole + lent


# What the real scheduler did


def recorded() -> Iterator[dict[str, Any]]:
    cases, more = KUEUE_SCHEDULER / "kueue-cases.json", KUEUE_SCHEDULER / "kueue-recorded.json.gz"
    yield from json.loads(cases.read_text())["cases"]
    yield from json.loads(gzip.decompress(more.read_bytes()))["cases"]


def number(resource: str, text: str | None) -> int | None:
    return None if text is None else amount(resource, parse_quantity(text))


def quotas_of(given: dict[str, Any]) -> dict[tuple[str, str], FlavorQuota]:
    return {
        (flavor["name"], each["name"]): FlavorQuota(
            number(each["name"], each["nominalQuota"]) or 0,
            number(each["name"], each["borrowingLimit"]),
            number(each["name"], each["lendingLimit"]),
        )
        for group in given["resourceGroups"]
        for flavor in group["flavors"]
        for each in flavor["resources"]
    }


def asked(workload: dict[str, Any], counts: dict[str, int] | None = None) -> dict[str, dict[str, int]]:
    """By pod set and resource."""
    found = {}
    for each in workload["podSets"]:
        count = (counts or {}).get(each["name"], each["count"])
        per_pod = {name: number(name, text) or 0 for name, text in each["requestsPerPod"].items()}
        found[each["name"]] = {"pods": count, **{name: one * count for name, one in per_pod.items()}}
    return found


def used(case: dict[str, Any]) -> dict[str, dict[FlavorResource, int]]:
    total: dict[str, dict[FlavorResource, int]] = {}
    for workload in case["workloads"]:
        given = (workload.get("reservation") or {}).get("podSets", [])
        requests = asked(workload, {each["name"]: each["count"] for each in given})
        own = total.setdefault(workload["clusterQueue"], {})
        for each in given:
            for resource, flavor in each["flavors"].items():
                key = FlavorResource(flavor, resource)
                own[key] = own.get(key, 0) + of_pod_set(requests, each["name"])[resource]
    return total


def of_pod_set(requests: dict[str, dict[str, int]], name: str) -> dict[str, int]:
    """The only pod set answers to any name: the cases are not careful with it."""
    return next(iter(requests.values())) if len(requests) == 1 else requests[name]


def tree_of(case: dict[str, Any]) -> QuotaTree:
    queues = [
        cluster_queue(each["name"], quotas_of(each), cohort=each["cohortName"] or "")
        for each in case["clusterQueues"]
    ]
    cohorts = [
        Cohort(
            meta(each["name"], ""),
            each["parentName"] or "",
            quotas={FlavorResource(*key): quota for key, quota in quotas_of(each).items()},
        )
        for each in case["cohorts"]
    ]
    return quota_tree(queues, cohorts, used(case))


def wanted(workload: dict[str, Any], pod_sets: list[dict[str, Any]]) -> dict[FlavorResource, int]:
    """By flavor and resource, all pod sets together."""
    requests = asked(workload, {each["name"]: each["count"] for each in pod_sets if "count" in each})
    total: dict[FlavorResource, int] = {}
    for each in pod_sets:
        of = of_pod_set(requests, each["name"])
        for resource, flavor in each["flavors"].items():
            key = FlavorResource(flavor, resource)
            total[key] = total.get(key, 0) + of[resource]
    return total


def heads() -> Iterator[tuple[str, QuotaNode, str, dict[str, Any], dict[FlavorResource, int]]]:
    """Workloads that flavors were chosen for in a cycle: name, ClusterQueue, its flavor preference, outcome,
    and what was chosen."""
    for case in recorded():
        tree = tree_of(case)
        preferences = {
            each["name"]: each["flavorFungibility"]["preference"] or "" for each in case["clusterQueues"]
        }
        for workload in case["workloads"]:
            expected = case["expected"][f"{workload['namespace'] or ''}/{workload['name']}"]
            pod_sets = expected.get("podSets") or expected.get("nominated", {}).get("podSets")
            if workload["role"] == "pending" and pod_sets:
                name = workload["clusterQueue"]
                chosen = wanted(workload, pod_sets)
                yield (
                    f"{case['id']} {workload['name']}",
                    tree.queues[name],
                    preferences[name],
                    expected,
                    chosen,
                )


def test_decisions_of_the_real_scheduler() -> None:
    """What was nominated as fitting fits, at its level; what needed victims does not fit without them."""
    fits = preempts = 0
    for name, node, preference, expected, chosen in heads():
        nominated = expected.get("nominated", {})
        exceeds = any(amount > node.available(key) for key, amount in chosen.items())
        if expected["outcome"] == "admitted" or nominated.get("mode") == "Fit":
            level = nominated.get("borrowingLevel", expected.get("borrowingLevel"))
            levels = [node.borrowing_level(key, amount) for key, amount in chosen.items()]
            if exceeds:  # a preference may hide a needed preemption: reference/kueue-volcano.md, 2.7, point 1
                assert preference == "PreemptionOverBorrowing", name
                continue
            assert level is None or max(levels, default=0) == level, name
            fits += 1
        else:
            assert exceeds, name
            assert all(amount <= node.potential(key) for key, amount in chosen.items()), name
            preempts += 1
    assert fits > 100
    assert preempts > 50
