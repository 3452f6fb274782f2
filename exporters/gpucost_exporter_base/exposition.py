"""Metric samples -> the text Prometheus scrapes, each source guarded, with each set of labels given once.

prometheus_client writes the text and chooses the format; what it does not check is checked here: equal label
sets, over-long label values, characters that a parser may refuse, a source that raises.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gpucost.contract.gpu_metrics import DUPLICATES, SOURCE_ERRORS, SOURCE_UP
from gpucost.contract.metric_spec import MetricSpec
from gpucost.domain.errors import InputError
from gpucost_exporter_base.endpoint import EndpointRequest, EndpointResponse, compress

logger = logging.getLogger(__name__)

LABEL_VALUE_LIMIT = 1024
"""Characters of a label value. A longer one is cut and ends in an ellipsis."""

Labelled = tuple[tuple[str, ...], float]

# Control characters but tab and newline: the text formats allow them, parsers differ. And lone
# surrogates, which UTF-8 cannot hold.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

# All names of the contract are plain, so every escaping scheme writes the same bytes. The writer that is
# asked to allow UTF-8 names skips the escaping of names, which costs a quarter of the OpenMetrics text.
_UNESCAPED = "version=1.0.0; escaping=allow-utf-8"
_Writer = Callable[[Collector], bytes]
_Format = tuple[_Writer, str]
_CLASSIC: _Format = choose_encoder("")
_TEXT: _Format = (
    choose_encoder(f"text/plain; {_UNESCAPED}")[0],
    choose_encoder("text/plain; version=1.0.0")[1],
)
_OPENMETRICS: _Format = (
    choose_encoder(f"application/openmetrics-text; {_UNESCAPED}")[0],
    choose_encoder("application/openmetrics-text; version=1.0.0")[1],
)


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric and its samples: label values in the order of ``spec.labels``, and a number.

    Empty label values stay. A number that is missing is no sample.
    """

    spec: MetricSpec
    samples: Sequence[Labelled]


class MetricSource(Protocol):
    """A part of an exporter that gives metrics.

    ``families`` reads what was collected and does not collect: it must not block. ``version`` is equal
    for as long as ``families`` would give the same, and None where that is not known: a rendering is used
    again while all versions are equal.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> object: ...

    def families(self) -> Iterable[MetricFamily]: ...


def render(families: Iterable[MetricFamily], accept: str) -> tuple[bytes, str]:
    """The text of ``families`` and its content type, in the format that the header ``Accept`` asks for.

    Families of one metric are put together. Of samples with equal labels the first is kept. Raises
    InputError for a sample with too few or too many label values, and for two metrics of one name.
    """
    page = _Page()
    page.add(_checked(families))
    write, content_type = _format(accept)
    return write(page), content_type


def clean(value: str) -> str:
    """A label value that every parser reads: not too long, U+FFFD in place of unsafe characters."""
    if len(value) > LABEL_VALUE_LIMIT:
        value = value[: LABEL_VALUE_LIMIT - 1] + "…"
    return _UNSAFE.sub("\ufffd", value)


class MetricExposition:
    """Renders several sources; one that raises is left out whole, reported and counted.

    May be called from several threads; they take turns, so sources need no lock for this. Raises
    InputError when two sources have one name.
    """

    def __init__(self, sources: Sequence[MetricSource]) -> None:
        names = [source.name for source in sources]
        for name in names:
            if names.count(name) > 1:
                raise InputError("source", name, "a name of its own for each source")
        self._sources = tuple(sources)
        self._up = dict.fromkeys(names, True)
        self._errors = dict.fromkeys(names, 0)
        self._duplicates = dict.fromkeys(names, 0)
        self._versions: tuple[object, ...] | None = None
        self._rendered: dict[str, _ExpositionText] = {}
        self._lock = threading.Lock()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text of all sources and its content type, in the format that ``accept`` asks for."""
        text, content_type = self._text(accept)
        return text.body, content_type

    def answer(self, request: EndpointRequest) -> EndpointResponse:
        """The route of /metrics."""
        text, content_type = self._text(request.headers.get("accept", ""))
        return EndpointResponse(200, (text.body,), content_type, text.zipped)

    def _text(self, accept: str) -> tuple[_ExpositionText, str]:
        write, content_type = _format(accept)
        with self._lock:
            # Before the families are read: what is newer than its version is rendered once more.
            versions = self._current_versions()
            if versions is None or versions != self._versions:
                self._versions = versions
                self._rendered.clear()
            text = self._rendered.get(content_type)
            if text is None:
                text = _ExpositionText(write(self._page()))
                if versions is not None and all(self._up.values()):
                    self._rendered[content_type] = text
        return text, content_type

    def _current_versions(self) -> tuple[object, ...] | None:
        try:
            versions = tuple(source.version for source in self._sources)
        except Exception:
            return None  # the source fails again, and is reported, when it is read
        return None if None in versions else versions

    def _page(self) -> _Page:
        page = _Page(reserved=(SOURCE_UP, SOURCE_ERRORS, DUPLICATES))
        for source in self._sources:
            try:
                self._duplicates[source.name] += page.add(_checked(source.families()))
            except Exception:
                self._errors[source.name] += 1
                if self._up[source.name]:  # once, not at every scrape
                    logger.exception("the source %s failed; its metrics are left out", source.name)
                self._up[source.name] = False
            else:
                self._up[source.name] = True
        page.add(_checked(self._self_families()))
        return page

    def _self_families(self) -> Iterator[MetricFamily]:
        rows: tuple[tuple[MetricSpec, Mapping[str, float]], ...] = (
            (SOURCE_UP, self._up),
            (SOURCE_ERRORS, self._errors),
            (DUPLICATES, self._duplicates),
        )
        for spec, by_source in rows:
            yield MetricFamily(spec, [((name,), value) for name, value in by_source.items()])


class _ExpositionText:
    """One rendering, compressed once for all clients that ask for it."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._zipped: tuple[bytes] | None = None
        self._lock = threading.Lock()

    def zipped(self) -> tuple[bytes]:
        with self._lock:
            if self._zipped is None:
                self._zipped = (compress(self.body),)
            return self._zipped


class _Page:
    """What one rendering gives, for prometheus_client. Its samples are made one metric at a time."""

    def __init__(self, reserved: Iterable[MetricSpec] = ()) -> None:
        self._specs = {spec.family: spec for spec in reserved}
        self._samples: dict[str, dict[tuple[str, ...], float]] = {}

    def add(self, families: Sequence[MetricFamily]) -> int:
        """Add all, or raise InputError and add none. Returns how many samples had labels seen before."""
        specs = dict(self._specs)
        for family in families:
            if specs.setdefault(family.spec.family, family.spec) != family.spec:
                raise InputError("metric", family.spec.name, "one declaration for each name")
        self._specs = specs
        duplicates = 0
        for family in families:
            known = self._samples.setdefault(family.spec.family, {})
            before = len(known)
            for labels, value in family.samples:
                known.setdefault(labels, value)
            duplicates += before + len(family.samples) - len(known)
        return duplicates

    def collect(self) -> Iterator[Metric]:
        for name, samples in self._samples.items():
            spec = self._specs[name]
            metric = Metric(name, spec.help, spec.type.value, spec.unit)
            metric.samples = [
                Sample(spec.name, dict(zip(spec.labels, labels, strict=True)), value)
                for labels, value in samples.items()
            ]
            yield metric


def _checked(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """All of ``families``, read to the end, with clean label values."""
    return [MetricFamily(family.spec, _clean_samples(family)) for family in families]


def _clean_samples(family: MetricFamily) -> list[Labelled]:
    width = len(family.spec.labels)
    samples: list[Labelled] = []
    for labels, value in family.samples:
        if len(labels) != width:
            raise InputError(f"{family.spec.name}.labels", labels, ", ".join(family.spec.labels))
        text = "".join(labels)  # nearly all are plain: one look at the whole is enough
        if not (text.isascii() and text.isprintable()) or len(text) > LABEL_VALUE_LIMIT:
            labels = tuple(map(clean, labels))
        samples.append((tuple(labels), float(value)))
    return samples


def _format(accept: str) -> _Format:
    """One of three formats, so that no header makes a fourth rendering of the same."""
    try:
        content_type = choose_encoder(accept)[1]
    except TypeError:  # prometheus_client on a version that is no number
        return _CLASSIC
    if content_type.startswith("application/openmetrics-text"):
        return _OPENMETRICS
    return _CLASSIC if content_type == _CLASSIC[1] else _TEXT
