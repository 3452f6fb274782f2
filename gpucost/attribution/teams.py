"""Which team a holder belongs to: ordered rules over the attributes of its pod, each with its validity.

``placed`` also says which rule decided, as text for people: the rule's own words, wherever it stands in the
file. Nothing of a pod is in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpucost.attribution.budgets import (
    BudgetPlan,
    ExpectedSpending,
    SpendingBudget,
    monthly_budgets,
    refuse_overlaps,
)
from gpucost.domain.buckets import NO_TEAM, RESERVED
from gpucost.domain.configfile import (
    MISSING,
    ConfigModel,
    DatedConfigModel,
    NanoAmount,
    Text,
    Version,
    dotted,
    is_name,
    load_yaml,
    wrong,
)
from gpucost.domain.errors import ErrorRemark
from gpucost.domain.money import NANO
from gpucost.domain.time import Window

if TYPE_CHECKING:
    import pandas as pd

CONDITIONS = ("namespace", "team_label", "project", "queue", "cluster_queue", "user")

NO_RULE = "no rule applies"
"""What is said in the place of a rule where the team is NO_TEAM."""

_PATTERNS = "a name or a pattern with *, ? or [a-z], or a list of them"


def _not_reserved(name: str) -> str:
    if name.startswith(RESERVED):
        raise wrong(
            name, f"a name that does not begin with {RESERVED}: those are the holders that are nobody"
        )
    return name


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


TeamName = Annotated[Text, AfterValidator(_not_reserved)]
Patterns = Annotated[tuple[Text, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=1000)]


class TeamProfile(ConfigModel):
    """A team, and what reports need of it beyond its name."""

    name: TeamName = Field(description="text, the team's name")
    cost_centre: Text | None = Field(None, description="text, the cost centre of the team")
    quota_gpus: NanoAmount | None = Field(None, description="GPUs the team is entitled to, such as 16 or 2.5")
    monthly_budget: NanoAmount | None = Field(
        None, description="what a month may cost, in the currency of the price book, such as 120000"
    )


class TeamRule(DatedConfigModel):
    """One rule: all its conditions must hold. An empty value fits no pattern."""

    team: TeamName | None = Field(None, description="text, the name of the team that the rule gives")
    team_from: Literal["namespace", "team_label", "project", "queue", "cluster_queue", "user"] | None = Field(
        None, description=f"one of {', '.join(CONDITIONS)}: its value is the team"
    )
    namespace: Patterns | None = Field(None, description=_PATTERNS)
    team_label: Patterns | None = Field(None, description=_PATTERNS)
    project: Patterns | None = Field(None, description=_PATTERNS)
    queue: Patterns | None = Field(None, description=_PATTERNS)
    cluster_queue: Patterns | None = Field(None, description=_PATTERNS)
    user: Patterns | None = Field(None, description=_PATTERNS)

    @model_validator(mode="after")
    def _is_complete(self) -> TeamRule:
        if (self.team is None) == (self.team_from is None):
            found = MISSING if self.team is None else ErrorRemark("both are given")
            raise wrong(found, "exactly one of team and team_from", "team")
        return self

    @cached_property
    def conditions(self) -> dict[str, frozenset[str]]:
        """Column -> patterns, for the columns the rule uses."""
        return {name: frozenset(value) for name in CONDITIONS if (value := getattr(self, name)) is not None}

    @cached_property
    def _regexes(self) -> dict[str, re.Pattern[str]]:
        return {
            name: re.compile("|".join(translate(pattern) for pattern in sorted(patterns)))
            for name, patterns in self.conditions.items()
        }

    @cached_property
    def text(self) -> str:
        """The rule in plain words: ``namespace is vision or vision-*``, ``team_label names the team``.

        About 200 characters of patterns, then how many more there are; always less than the ledger's
        MAX_TEXT. It is shown to the team that the rule gives. Where a rule gives several teams, a list of
        patterns may name the others, so that only their number is told.
        """
        most = _MOST_SHOWN // max(len(self.conditions), 1)
        parts = [
            f"{name} is one of {len(patterns)} patterns"
            if self.team_from and len(patterns) > 1
            else f"{name} is {_listed(sorted(patterns), most)}"
            for name, patterns in self.conditions.items()
        ]
        if self.team_from:
            parts.append(f"{self.team_from} names the team")
        said = "; ".join(parts) or "every pod"
        return said if self.validity == "always" else f"{said}, {self.validity}"

    def gives(self, holder: Mapping[str, str]) -> str:
        """The team this rule gives a holder, or empty text when it does not apply."""
        if not all(holder[name] and regex.match(holder[name]) for name, regex in self._regexes.items()):
            return ""
        name = holder[self.team_from].strip() if self.team_from else self.team or ""
        # A label must not make a pod pass for unallocated time, nor an annotation fill a name with a page of
        # text.
        return name if is_name(name) and not name.startswith(RESERVED) else ""


# Characters of patterns in a rule's text.
_MOST_SHOWN = 200


def _listed(patterns: list[str], most: int) -> str:
    shown: list[str] = []
    for pattern in patterns:
        word = f'"{pattern}"' if set(pattern) & set(' ,;"') else pattern
        if shown and len(" or ".join((*shown, word))) > most:
            break
        shown.append(word if len(word) <= most else f"{word[: most - 1]}…")
    more = len(patterns) - len(shown)
    return " or ".join([*shown, *([f"{more} more"] if more else [])])


class TeamFile(ConfigModel):
    """A whole file of team rules. With ``teams``, every team that a rule names must be among them."""

    version: Version = Field(description="1, the version of this format")
    teams: tuple[TeamProfile, ...] = Field((), description="a list of teams")
    budgets: tuple[SpendingBudget, ...] = Field((), description="a list of budgets")
    expected: tuple[ExpectedSpending, ...] = Field((), description="a list of what teams announced")
    rules: tuple[TeamRule, ...] = Field(description="a list of rules; the first that applies decides")

    @model_validator(mode="after")
    def _is_consistent(self) -> TeamFile:
        places: dict[str, int] = {}
        for n, team in enumerate(self.teams):
            if team.name in places:
                there = dotted(("teams", places[team.name]))
                raise wrong(team.name, f"a name once; {there} has it already", "teams", n, "name")
            places[team.name] = n
        for n, rule in enumerate(self.rules):
            if places and rule.team is not None and rule.team not in places:
                raise wrong(rule.team, f"a team of the list: {', '.join(places)}", "rules", n, "team")
        self._refuse_identical()
        refuse_overlaps(self.budgets)
        monthly = {team.name for team in self.teams if team.monthly_budget is not None}
        for n, budget in enumerate(self.budgets):
            if budget.name in monthly:
                allowed = "a name that no team with a monthly_budget has"
                raise wrong(budget.name, allowed, "budgets", n, "name")
        self._refuse_unknown(places)
        return self

    def _refuse_unknown(self, teams: Mapping[str, int]) -> None:
        """Nobody would ever spend of a budget of a team that is not there."""
        named = [("budgets", n, each.team) for n, each in enumerate(self.budgets)]
        named += [("expected", n, each.team) for n, each in enumerate(self.expected)]
        for key, n, team in named:
            if team is not None and team.startswith(RESERVED):
                raise wrong(team, f"a name that does not begin with {RESERVED}", key, n, "team")
            if teams and team is not None and team not in teams:
                raise wrong(team, f"a team of the list: {', '.join(teams)}", key, n, "team")
        centres = [each.cost_centre for each in self.teams if each.cost_centre is not None]
        for n, budget in enumerate(self.budgets):
            if teams and budget.cost_centre is not None and budget.cost_centre not in centres:
                allowed = f"a cost centre of the teams: {', '.join(sorted(set(centres))) or 'none has one'}"
                raise wrong(budget.cost_centre, allowed, "budgets", n, "cost_centre")

    def _refuse_identical(self) -> None:
        groups: dict[object, list[tuple[int, TeamRule]]] = defaultdict(list)
        for n, rule in enumerate(self.rules):
            # Rules that copy different columns are a fallback; two fixed teams under one condition are an
            # error.
            group = groups[(frozenset(rule.conditions.items()), rule.team_from)]
            for m, other in group:
                if rule.coincides(other):
                    found = ErrorRemark(f"the same conditions as rules[{m}] at the same time")
                    raise wrong(found, "other conditions, or validities that do not overlap", "rules", n)
            group.append((n, rule))


@dataclass(frozen=True)
class TeamRules:
    """Validated team rules, ready to place holders."""

    file: TeamFile

    @classmethod
    def parse(cls, text: str, file: str) -> TeamRules:
        """YAML text -> TeamRules; ``file`` is named in errors. Raises ConfigError."""
        return cls(load_yaml(text, file, TeamFile))

    @classmethod
    def default(cls) -> TeamRules:
        """The team label where there is one, else no team."""
        return cls(TeamFile(version=1, rules=(TeamRule(team_from="team_label"),)))

    @property
    def teams(self) -> tuple[TeamProfile, ...]:
        return self.file.teams

    @property
    def names(self) -> frozenset[str]:
        """Teams that the rules name; others get their names from pods."""
        given = {rule.team for rule in self.file.rules if rule.team is not None}
        return frozenset(given | {team.name for team in self.teams})

    @property
    def quotas(self) -> dict[str, Fraction]:
        """GPUs per team, for the teams that have a quota: weights of the by-quota idle policy."""
        return {
            team.name: Fraction(team.quota_gpus, NANO) for team in self.teams if team.quota_gpus is not None
        }

    @property
    def budgets(self) -> dict[str, int]:
        """Nano-units of money per calendar month, for the teams that have a budget."""
        return {team.name: team.monthly_budget for team in self.teams if team.monthly_budget is not None}

    @property
    def expected(self) -> dict[str, tuple[Window, ...]]:
        """When teams announced more spending, by team."""
        found: dict[str, tuple[Window, ...]] = {}
        for each in self.file.expected:
            found[each.team] = (*found.get(each.team, ()), each.window)
        return found

    @property
    def budget_plans(self) -> tuple[BudgetPlan, ...]:
        """All budgets by name: those of the list, and each team's ``monthly_budget`` under its name."""
        return monthly_budgets(self.budgets, self.file.budgets)

    def assign(self, holders: pd.DataFrame, at_ms: int) -> pd.Series[str]:
        """The team of each row of ``holders`` by the rules in force at ``at_ms``; NO_TEAM where none applies.

        ``holders`` has the HOLDER_COLUMNS of the contract; the result has its index.
        """
        return self.placed(holders, at_ms)["team"]

    def placed(self, holders: pd.DataFrame, at_ms: int) -> pd.DataFrame:
        """The ``team`` of each row as ``assign`` gives it, and the text of the ``rule`` that decided; NO_RULE
        where none applies."""
        import pandas as pd  # Imported here: rules are also read where no frames are

        rules = [rule for rule in self.file.rules if rule.holds_at(at_ms)]
        columns = holders[list(CONDITIONS)]
        same = columns.groupby(list(CONDITIONS), sort=False, observed=True).ngroup()
        first = same.reset_index(drop=True).drop_duplicates()
        distinct = zip(
            *(values.tolist() for _, values in columns.take(first.index.to_numpy()).items()), strict=True
        )
        found = [_placed(rules, dict(zip(CONDITIONS, values, strict=True))) for values in distinct]
        placed = pd.DataFrame(found, index=first, columns=["team", "rule"], dtype="str")
        return placed.loc[same].set_axis(holders.index)

    def team_of(self, holder: Mapping[str, str], at_ms: int) -> str:
        """The team of one holder, which has a value for each of ``CONDITIONS``, by the rules in force at
        ``at_ms``; NO_TEAM where none applies."""
        team, _ = _placed([rule for rule in self.file.rules if rule.holds_at(at_ms)], holder)
        return team

    def team_of_queue(self, cluster_queue: str, window: Window) -> str | None:
        """The team to which the rules give a ClusterQueue as such, all of ``window``: by a rule that asks for
        nothing but the queue. None where they do not: then its pods may be of several teams."""
        holder = dict.fromkeys(CONDITIONS, "") | {"cluster_queue": cluster_queue}
        for rule in self.file.rules:
            asks = {*rule.conditions, rule.team_from or "cluster_queue"}
            if asks == {"cluster_queue"} and (team := rule.gives(holder)):
                inside = rule.start_ms <= window.start_ms and window.end_ms <= rule.end_ms
                return team if inside else None
        return None

    def changes(self, window: Window) -> tuple[int, ...]:
        """The instants inside ``window``, its edges left out, at which a rule starts or ends."""
        edges = {edge for rule in self.file.rules for edge in rule.edges}
        return tuple(sorted(edge for edge in edges if window.start_ms < edge < window.end_ms))


def _placed(rules: Iterable[TeamRule], holder: Mapping[str, str]) -> tuple[str, str]:
    """The team of the first rule that applies, and that rule's text."""
    return next(((team, rule.text) for rule in rules if (team := rule.gives(holder))), (NO_TEAM, NO_RULE))
