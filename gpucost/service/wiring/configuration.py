"""All that is read from files, as one configuration: settings, price book, team rules, charge policy and
mounted secrets."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

from gpucost.attribution.teams import TeamRules
from gpucost.charges.policy_file import PolicyBook
from gpucost.pricing.price_book import PriceBook
from gpucost.service.settings.model import Settings
from gpucost.service.settings.notifications import check_teams
from gpucost.service.wiring.inputs import load_book, load_policy, load_teams
from gpucost.service.wiring.pipeline import build_rules
from gpucost.settings.secret_files import read_small

_HASH_DIGITS = 16
# Files that other parts watch while the service runs, and take without a reload.
_OWN_READERS = re.compile(r"(api\.tls_|webhook\.)")
# Files that are no secret, or hold more than one.
_PUBLIC_FILES = re.compile(r"(ca_file|tls_cert_file|kubeconfig|book|rules|policy)$")
_LONGEST_SECRET_FILE = 8_192
_USER_INFO = re.compile(r"://[^/@\s]*:([^@\s]+)@")
_SHORTEST_PATH = 12
# Settings that a process keeps until it ends; everything else is rebuilt on a reload.
_FIXED = ("api.host", "api.port", "api.tls_cert_file", "api.tls_key_file", "log.format", "webhook.*")


@dataclass(frozen=True)
class ServiceConfiguration:
    """One reading of all files."""

    settings: Settings
    book: PriceBook
    teams: TeamRules
    policy: PolicyBook

    @classmethod
    def read(cls, load: Callable[[], Settings]) -> ServiceConfiguration:
        """``load`` gives the settings. Raises ConfigError and InputError for what does not fit together."""
        settings = load()
        teams = load_teams(settings.teams.rules)
        policy = load_policy(settings.charges.policy, teams)
        found = cls(settings, load_book(settings.pricing.book), teams, policy)
        check_teams(settings.notify, found.teams)
        build_rules(settings.attribution, found.book, found.teams)
        return found

    @property
    def hash(self) -> str:
        """The same wherever the same configuration is in force. No secret is part of it: it is shown on
        /metrics, where a reader who knows the rest could try out passwords."""
        texts = [_text_of(file) for file in self.named]
        whole = json.dumps([_plain(self.settings), *texts], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:_HASH_DIGITS]

    @property
    def named(self) -> tuple[Path | None, ...]:
        """The files of the price book, the team rules and the charge policy, None where there is none; and
        those that the policy names."""
        settings, policy = self.settings, self.settings.charges.policy
        beside = () if policy is None else (policy.parent / name for name in self.policy.files)
        return settings.pricing.book, settings.teams.rules, policy, *beside

    def files(self) -> tuple[Path, ...]:
        """Files that the settings name, without those that their users watch themselves."""
        found = {value for name, value in _walk(self.settings) if isinstance(value, Path)}
        own = {
            value
            for name, value in _walk(self.settings)
            if isinstance(value, Path) and _OWN_READERS.match(name)
        }
        found |= {file for file in self.named if file is not None}
        return tuple(sorted(file for file in found - own if not file.is_dir()))

    def secrets(self) -> frozenset[str]:
        """Every secret text, for a log that must not hold any."""
        found = set[str]()
        for name, value in _walk(self.settings):
            if isinstance(value, SecretStr):
                found |= _parts(value.get_secret_value())
            elif isinstance(value, Path) and not _PUBLIC_FILES.search(name):
                found |= _parts(_text_of(value))
        return frozenset(found)

    def fixed_changes(self, other: ServiceConfiguration) -> tuple[str, ...]:
        """Settings by which ``other`` differs and which a process cannot change while it runs."""
        ours, theirs = dict(_walk(self.settings)), dict(_walk(other.settings))
        changed = [
            name
            for name in sorted({*ours, *theirs})
            if any(re.fullmatch(fixed.replace(".*", r"\..*"), name) for fixed in _FIXED)
            and ours.get(name) != theirs.get(name)
        ]
        if self.settings.ledger.database_url() != other.settings.ledger.database_url():
            changed.append("ledger.url")
        return tuple(changed)


def read_as_seen(
    read: Callable[[], ServiceConfiguration], file: Path | None, files: tuple[Path, ...]
) -> tuple[ServiceConfiguration, str]:
    """The configuration, and the fingerprint of the settings ``file`` and the files it names, taken before
    the read: what is written meanwhile or later has another. ``files`` are those it is expected to name."""
    while True:
        seen = fingerprint(files, file)
        found = read()
        if found.files() == files:
            return found, seen
        files = found.files()


def fingerprint(files: tuple[Path, ...], first: Path | None = None) -> str:
    """Changes when a file, ``first`` or of ``files``, has other content, disappears or appears; not when it
    was only touched, or another link leads to the same."""
    found = hashlib.sha256()
    for file in files if first is None else (first, *files):
        try:
            content = hashlib.sha256(read_small(file)).hexdigest()
        except OSError as error:
            content = type(error).__name__
        found.update(f"{file}\0{content}\0".encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _walk(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is not a group, a list or a map, under its dotted name."""
    if isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from _walk(getattr(value, key), f"{name}.{key}" if name else key)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, f"{name}.{key}")
    elif isinstance(value, tuple | list):
        for number, inner in enumerate(value):
            yield from _walk(inner, f"{name}[{number}]")
    else:
        yield name, value


def _plain(settings: Settings) -> dict[str, str]:
    found = {}
    for name, value in _walk(settings):
        if isinstance(value, SecretStr):
            continue
        shown = sorted(map(str, value)) if isinstance(value, AbstractSet) else value
        found[name] = str(shown)
    return found


def _parts(secret: str) -> set[str]:
    """A secret, and the parts of it that are secret by themselves: a password, or the path of a webhook."""
    found = {secret, *secret.split()}
    for password in _USER_INFO.findall(secret):
        found |= {password, unquote(password)}
    try:
        parts = urlsplit(secret)
    except ValueError:
        return found
    if parts.scheme in ("http", "https"):
        found |= {text for text in (parts.path, parts.query) if len(text) >= _SHORTEST_PATH}
    elif parts.netloc or parts.scheme.startswith("sqlite"):
        # The host of a database is no secret, and an error without it would be of no help.
        found -= {secret, *secret.split()}
        found |= {parts.query}
    return found


def _text_of(file: Path | None) -> str:
    """The content of a small file of text; nothing of any other."""
    if file is None:
        return ""
    try:
        if file.stat().st_size > _LONGEST_SECRET_FILE and file.suffix not in (".yaml", ".yml"):
            return ""
        return read_small(file).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
