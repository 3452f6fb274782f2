"""Rows of series as text, each line checked to be of its metric, with its labels in the contract's order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

from prometheus_client.parser import text_string_to_metric_families

from gpucost.contract.metric_spec import MetricSpec

HOSTILE = 'a"b\\c\n{d="e"} #é\ud83d'
"""A name that the API would refuse; its lone surrogate cannot be in UTF-8."""
TAMED = (
    'a"b\\c\n{d="e"} #é\ufffd\ufffd'
    + blake2b(HOSTILE.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
)
"""What a reader of Prometheus's text gets of it: changed, and marked by what it was."""

_LINE = re.compile(
    r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (?P<value>\S+)'
)
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def lines(specs: Sequence[MetricSpec], texts: Sequence[bytes]) -> list[str]:
    """All lines of a row, without the prefix ``gpucost_`` of their metrics."""
    assert len(texts) == len(specs)
    found = []
    for spec, text in zip(specs, texts, strict=True):
        assert text == b"" or text.endswith(b"\n")
        for line in text.decode().split("\n")[:-1]:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            assert match["name"] == spec.name
            names = [name for name, _ in _LABEL.findall(match["labels"] or "")]
            assert names[: len(spec.labels)] == list(spec.labels)
            assert all(
                spec.label_prefix and name.startswith(spec.label_prefix) for name in names[len(spec.labels) :]
            )
            found.append(line.removeprefix("gpucost_"))
    return found


def read_back(specs: Sequence[MetricSpec], texts: Sequence[bytes]) -> list[dict[str, str]]:
    """The labels of each line, as another parser understands them."""
    lines(specs, texts)
    families = text_string_to_metric_families(b"".join(texts).decode())
    return [sample.labels for family in families for sample in family.samples]
