"""Names in a recorded case: as they are, or aliases that say nothing and keep their order."""

from __future__ import annotations

from collections.abc import Iterable

_DIGITS = 5


class Names:
    """Real names."""

    is_anonymous = False

    def of(self, kind: str, name: str) -> str:
        """``kind`` says what it names (``queue``, ``flavor``). An empty name stays empty."""
        del kind
        return name

    def learn(self, kind: str, names: Iterable[str]) -> None:
        """Names to come, in the order that their aliases are to have."""
        del kind, names


class Aliases(Names):
    """``queue-00001`` and so on: the same for the same name while this lives, so over all cases of a file."""

    is_anonymous = True

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def of(self, kind: str, name: str) -> str:
        if not name:
            return ""
        alias = self._known.get((kind, name))
        if alias is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            alias = self._known[kind, name] = f"{kind}-{self._counts[kind]:0{_DIGITS}}"
        return alias

    def learn(self, kind: str, names: Iterable[str]) -> None:
        for name in names:
            self.of(kind, name)
