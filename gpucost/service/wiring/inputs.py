"""Files and arguments that people write: the price book, the team rules, charge policies, contracts, and the
source that a command line names.

Many commands need nothing else of this package, so this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import InputError
from gpucost.pricing.price_book import DEFAULT_BOOK_FILE, PriceBook, default_book_text
from gpucost.service.settings.loader import checked, read_config
from gpucost.service.settings.model import PrometheusSettings, SourceSettings

if TYPE_CHECKING:
    from gpucost.charges.contract_terms import ContractBook
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.service.settings.model import Settings


def load_book(file: Path | None) -> PriceBook:
    """The price book in ``file``, or the one that ships with gpucost. Raises ConfigError."""
    return _default_book() if file is None else PriceBook.parse(read_config(file), str(file))


@cache
def _default_book() -> PriceBook:
    """Read once by a process: it is long, and nothing changes it."""
    return PriceBook.parse(default_book_text(), DEFAULT_BOOK_FILE, is_ours=True)


def load_contracts(file: Path, teams: Collection[str] | None = None) -> ContractBook:
    """The contracts in ``file``; with ``teams``, their owners are among them. Raises ConfigError."""
    from gpucost.charges.contract_terms import ContractBook

    return ContractBook.parse(read_config(file), str(file), teams)


def beside(file: Path) -> Callable[[str], tuple[str, str]]:
    """Reads what ``file`` names in its own folder: a name -> (text, name for errors). Raises ConfigError."""

    def read(name: str) -> tuple[str, str]:
        found = file.parent / name
        return read_config(found), str(found)

    return read


def load_teams(file: Path | None) -> TeamRules:
    """The team rules in ``file``, or the default ones. Raises ConfigError."""
    return TeamRules.default() if file is None else TeamRules.parse(read_config(file), str(file))


_PLAIN_POLICY = "version: 1\nname: by use, idle kept by the platform\n"


def read_policy(file: Path, rules: TeamRules) -> PolicyBook:
    """The charge policy in ``file``, with the quotas that it names. Raises ConfigError."""
    from gpucost.charges.policy_file import PolicyBook

    return PolicyBook.parse(read_config(file), str(file), rules.quotas, beside(file))


def load_policy(file: Path | None, rules: TeamRules) -> PolicyBook:
    """The charge policy in ``file``, or the plain one: by use, idle kept by the platform.

    Raises ConfigError, also for a team that no rule can give. Where a rule takes the team from a label, a
    namespace or the like, any name may be one; then the ledger knows, month by month.
    """
    if file is None:
        from gpucost.charges.policy_file import PolicyBook

        return PolicyBook.parse(_PLAIN_POLICY, "the default policy", rules.quotas)
    book = read_policy(file, rules)
    if not any(rule.team_from for rule in rules.file.rules):
        book.check_teams(rules.names)
    return book


def parse_source(text: str, settings: Settings) -> Settings:
    """``settings`` with the source that ``recorded:DIR`` or ``prometheus:URL`` names. Raises InputError."""
    kind, _, where = text.partition(":")
    inner = settings.source.inner_schedulers
    if kind == "recorded" and where:
        source = SourceSettings(kind="recorded", path=Path(where), inner_schedulers=inner)
        return settings.model_copy(update={"source": source})
    if kind == "prometheus" and ":" in text:
        values = {name: getattr(settings.prometheus, name) for name in PrometheusSettings.model_fields}
        prometheus = checked(PrometheusSettings, {**values, "url": where}, "prometheus.")
        return settings.model_copy(
            update={"source": SourceSettings(inner_schedulers=inner), "prometheus": prometheus}
        )
    raise InputError(
        "--source", text, "recorded:DIR or prometheus:URL, such as prometheus:http://localhost:9090"
    )
