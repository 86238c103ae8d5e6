"""Writes metrics in Prometheus' text format. Imported when somebody first asks for them: it takes
prometheus-client, which the daemon does not need otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, PROCESS_COLLECTOR, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from carmad.metrics.declared import METRICS, Metric
from carmad.metrics.figures import Counts, Figure

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MOST_LABEL = 128  # characters


def text(figures: Iterable[Figure], counts: Counts) -> bytes:
    """`figures` and `counts`, and those of this process."""
    return generate_latest(_Page(figures, counts))


class _Page(Collector):
    def __init__(self, figures: Iterable[Figure], counts: Counts) -> None:
        self._families = {each: _family(each) for each in METRICS}
        for metric, values, value in (*figures, *counts.counters()):
            self._families[metric].add_sample(metric.name, _labels(metric, values), value)
        for metric, values, cumulative, total in counts.histograms():
            family, labels = self._families[metric], _labels(metric, values)
            bounds = (*map(str, metric.buckets), "+Inf")
            for bound, number in zip(bounds, cumulative, strict=True):
                family.add_sample(f"{metric.name}_bucket", labels | {"le": bound}, number)
            family.add_sample(f"{metric.name}_count", labels, cumulative[-1])
            family.add_sample(f"{metric.name}_sum", labels, total)

    def collect(self) -> Iterator[Family]:
        yield from (family for family in self._families.values() if family.samples)
        yield from PROCESS_COLLECTOR.collect()


def _family(metric: Metric) -> Family:
    """The library adds a counter's suffix again."""
    return Family(metric.name.removesuffix("_total"), metric.help, metric.kind)


def _labels(metric: Metric, values: Iterable[str]) -> dict[str, str]:
    """Names of users and estimators may have any characters, also bytes that are not UTF-8."""
    safe = (each[:MOST_LABEL].encode(errors="replace").decode() for each in values)
    return dict(zip(metric.labels, safe, strict=True))
