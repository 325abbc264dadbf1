"""The figures in Prometheus's formats: over HTTP on the loopback address, and as a text file."""

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from slurm_hadar import __version__
from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.metrics.totals import BUCKETS_S, NAME, Totals, remembered
from slurm_hadar.controller.report import TickReport

_ACCEPT = re.compile(rb"\r\naccept:\s*([^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class _Family:
    """``key``: what :class:`Totals` calls it."""

    name: str
    key: str
    help: str
    labels: tuple[str, ...] = ()


_COUNTERS = (
    _Family("hadar_ticks", "ticks", "Ticks by their result.", ("result",)),
    _Family("hadar_tick_phase_seconds", "phase_s", "Seconds of ticks by phase.", ("phase",)),
    _Family(
        "hadar_decisions",
        "decisions",
        "Decisions on managed jobs, one a job and tick.",
        ("decision",),
    ),
    _Family("hadar_actions", "actions", "Changes sent to Slurm and taken.", ("kind",)),
    _Family("hadar_refusals", "refusals", "Jobs that Slurm refused to change, once a tick."),
    _Family("hadar_slurm_queries", "queries", "Requests to Slurm.", ("kind",)),
    _Family("hadar_moves", "moves", "Moves and stops by what became of them.", ("outcome",)),
    _Family(
        "hadar_lost_seconds", "lost_s", "Seconds that moves and stops cost their jobs.", ("cause",)
    ),
    _Family("hadar_lost_samples", "lost_samples", "Samples that moves and stops cost.", ("cause",)),
    _Family(
        "hadar_gained_seconds", "gained_s", "Seconds that jobs which a move restarted saved so far."
    ),
    _Family(
        "hadar_gained_samples",
        "gained_samples",
        "Samples that jobs which a move restarted trained beyond their former speed.",
    ),
    _Family("hadar_gpu_seconds", "gpu_s", "GPU-seconds by type and state.", ("type", "state")),
)
_GAUGES = (
    _Family("hadar_last_tick_timestamp_seconds", "last_tick_s", "When the last tick read Slurm."),
    _Family("hadar_last_failed_tick_timestamp_seconds", "last_failed_s", "When one last failed."),
    _Family("hadar_interval_seconds", "interval_s", "Seconds between two ticks as they are now."),
    _Family("hadar_acting", "acting", "1 where the last tick changed what it decided."),
    _Family("hadar_jobs", "jobs", "Jobs that wait or run.", ("managed", "state")),
    _Family("hadar_gpus", "gpus", "GPUs by type and state.", ("type", "state")),
)


class _Figures(Collector):
    def __init__(self) -> None:
        self.totals = Totals()

    def collect(self) -> Iterator[Metric]:
        """All families, with no sample where nothing was counted yet."""
        # Copies: a tick may count meanwhile.
        counts, gauges = dict(self.totals.counts), dict(self.totals.gauges)
        for one in _COUNTERS:
            counter = CounterMetricFamily(one.name, one.help, labels=one.labels)
            for labels, value in _samples(counts, one):
                counter.add_metric(labels, value)
            yield counter
        for one in _GAUGES:
            gauge = GaugeMetricFamily(one.name, one.help, labels=one.labels)
            for labels, value in _samples(gauges, one):
                gauge.add_metric(labels, value)
            yield gauge
        yield _histogram(counts)
        last = gauges.get("last_tick_s")
        age = GaugeMetricFamily("hadar_last_tick_age_seconds", "Seconds since the last tick.")
        if last:
            age.add_metric((), max(0.0, time.time() - last))
        yield age
        info = GaugeMetricFamily("hadar_build_info", "Always 1.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info


class MetricsExporter:
    """What a daemon, or one tick of a timer, counts and shows."""

    def __init__(self, config: Config) -> None:
        """Counts on from what the state file has, see :meth:`open`."""
        self._config = config
        self._figures = _Figures()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._figures)

    def open(self, store: Store) -> None:
        """Count on from what this state file steering_store."""
        with contextlib.suppress(sqlite3.Error):
            self._figures.totals = remembered(store.policy_state(NAME))

    def learn(self, report: TickReport, store: Store, interval_s: float) -> str:
        """A tick is over. A sentence where something could not be kept; else empty."""
        with store.readable_errors():
            self._figures.totals.learn(report, store, self._config, interval_s)
        return self._keep(store)

    def failed(self, store: Store) -> str:
        """A tick did nothing; as :meth:`learn`."""
        self._figures.totals.failed(time.time())
        return self._keep(store)

    def _keep(self, store: Store) -> str:
        # On a full disk the counters go on in memory.
        with contextlib.suppress(sqlite3.Error):
            store.keep_policy_state(NAME, asdict(self._figures.totals))
        path = self._config.metrics.textfile
        if path is None:
            return ""
        try:
            write_to_textfile(str(path), self._registry)
        except OSError as error:
            return f"metrics.textfile {path} cannot be written ({error.strerror})"
        return ""

    def answer(self, _: int, request: bytes) -> bytes:
        """The answer to one HTTP request, of which the headers are given."""
        line = request.split(b"\r\n", 1)[0].split(b" ")
        if len(line) != 3 or line[0] not in (b"GET", b"HEAD"):
            return _http("405 Method Not Allowed", "text/plain", b"")
        if line[1].split(b"?")[0] != b"/metrics":
            return _http("404 Not Found", "text/plain", b"see /metrics\n")
        accept = _ACCEPT.search(request)
        encode, kind = choose_encoder(accept[1].decode("latin-1") if accept else "")
        body = encode(self._registry)
        return _http("200 OK", kind, body if line[0] == b"GET" else b"")


def _samples(values: dict[str, float], one: _Family) -> Iterable[tuple[tuple[str, ...], float]]:
    for key, value in values.items():
        name, *labels = key.split("|")
        if name == one.key and len(labels) == len(one.labels):
            yield tuple(labels), value


def _histogram(counts: dict[str, float]) -> Metric:
    found, total = [], 0.0
    for bound in (*(f"{one:g}" for one in BUCKETS_S), "+Inf"):
        total += counts.get(f"tick_bucket|{bound}", 0.0)
        found.append((bound, total))
    family = HistogramMetricFamily("hadar_tick_duration_seconds", "Seconds of a tick.")
    family.add_metric((), buckets=found, sum_value=counts.get("tick_s", 0.0))
    return family


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
