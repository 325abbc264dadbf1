"""What is counted of ticks, and how it is shown to Prometheus."""

import socket
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest
from free_ports import free_port
from hand_made import NOW, config, dictate, job, look, node, observation, ordinary, running
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from slurm_hadar.controller.actuation.actions import NOT_STOPPED
from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.metrics import totals
from slurm_hadar.controller.metrics.export import MetricsExporter
from slurm_hadar.controller.metrics.totals import Totals, remembered
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.service.server import LoopbackServer
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Plan

SITE = config()


def report(*jobs, now=NOW, nodes=None, acted=True, progress=None):
    shown = observation(jobs, nodes, now=now)
    view = look(shown, SITE)
    shown = replace(shown, progress=progress or {})
    plan = dictate(view.view, {}) if jobs else Plan({}, {})
    return TickReport(
        shown, view, plan, PlanDiff(()), acted, queries={"jobs": 2}, refused=frozenset({"7"}),
        read_s=0.2, decide_s=0.1, act_s=0.3,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(tmp_path / "state")) as opened:
        yield opened


def test_gpu_seconds_are_those_between_two_ticks(store):
    found = Totals()
    nodes = [node("v1", gpus=4, gpus_used={"v100": 1}), node("k1", gpus=2, usable=False)]
    one = running("1", {"v1": {"v100": 1}})
    found.learn(report(one, nodes=nodes), store, SITE, 60.0)
    assert not any(value for key, value in found.counts.items() if key.startswith("gpu_s"))
    found.learn(report(one, nodes=nodes, now=NOW + 60), store, SITE, 60.0)
    assert found.counts["gpu_s|v100|used"] == 60 and found.counts["gpu_s|v100|idle"] == 180
    assert found.counts["gpu_s|k80|down"] == 120 and found.gauges["gpus|v100|used"] == 1
    # A controller that was away for a day saw nothing, and a clock may go back.
    for now in (NOW + 86_400, NOW):
        found.learn(report(one, nodes=nodes, now=now), store, SITE, 60.0)
    assert found.counts["gpu_s|v100|used"] == 60
    assert found.gauges["jobs|yes|running"] == 1 and found.gauges["jobs|no|pending"] == 0


def test_each_move_and_its_cost_count_once(store):
    details = {"gpus": {"v100": 1}, "from": {"k1": {"k80": 1}}, "restarts": 0}
    found = Totals()
    first = store.begin("1", "move", "asked", NOW, details)
    found.learn(report(), store, SITE, 60.0)
    assert "moves|moved" not in found.counts
    store.end(first, "moved", NOW + 5)
    second = store.begin("2", "move", "asked", NOW, details)
    store.end(second, "the job did not save within 120 s", NOW + 5)
    store.connection.execute("UPDATE journal SET effect='{}' WHERE id=?", (second,))
    for number in range(3):
        found = remembered(asdict(found))
        found.learn(report(now=NOW + 60 * number), store, SITE, 60.0)
    assert found.counts["moves|moved"] == 1 and found.counts["moves|not_saved"] == 1
    effect = (
        '{"without_training_s": 8.0, "lost_samples": 50, "rate_before": 100, "rate_after": 300}'
    )
    store.connection.execute("UPDATE journal SET effect=? WHERE id=?", (effect, first))
    reported = SimpleNamespace(restarts=1, rate=300.0)
    moved = running("1", {"v1": {"v100": 1}}, restarts=1)
    for number in range(3):
        one = report(moved, now=NOW + 300 + 60 * number, progress={"1": reported})
        found.learn(one, store, SITE, 60.0)
    assert found.counts["lost_s|without_training"] == 8
    assert found.counts["lost_samples|work_again"] == 50
    # Two ticks after the first one that knew of it, and that one: 60 s each at 200 more a second.
    assert found.counts["gained_samples"] == pytest.approx(200 * found.counts["gained_s"] / 2)
    assert found.counts["gained_s"] >= 2 * 60 * 2
    found.learn(report(replace(moved, restarts=2)), store, SITE, 60.0)
    assert found.gains == {} and found.open == [] and found.unmeasured == []


def test_a_job_that_the_guards_keep_running_counts_as_placed(store):
    found, one = Totals(), report(running("1", {"v1": {"v100": 1}}), job("2"))
    kept = replace(one, diff=PlanDiff((), {"1": NOT_STOPPED}))
    found.learn(kept, store, SITE, 60.0)
    assert found.counts["decisions|placed"] == 1 and found.counts["decisions|waits"] == 1


@pytest.mark.parametrize("state", [{}, {"counts": 3}, {"counts": {"a": "b"}}, {"gains": {"1": 2}}])
def test_a_damaged_memory_is_none(state):
    assert remembered(state) == Totals()


def test_however_many_types_a_cluster_has_labels_stay_few(store, monkeypatch):
    monkeypatch.setattr(totals, "MOST_TYPES", 2)
    nodes = [replace(node("v1"), name=f"n{n}", gpus={f"t{n}|x": 1}) for n in range(9)]
    found = Totals()
    for now in (NOW, NOW + 60):
        found.learn(report(nodes=nodes, now=now), store, SITE, 60.0)
    kinds = {key.split("|")[1] for key in found.counts if key.startswith("gpu_s|")}
    assert kinds == {"t0_x", "t1_x", "other"}
    assert found.gauges["gpus|other|idle"] == 7


def shown(tmp_path, store, port=0):
    file = tmp_path / "hadar.prom"
    one = MetricsExporter(config(f'[metrics]\ntextfile = "{file}"\nport = {port}\n'))
    one.open(store)
    jobs = [job("1", user="ann", name="secret", account="phys"), ordinary("2", user="bob")]
    assert one.learn(report(*jobs), store, 60.0) == ""
    return one, file


def test_the_text_file_holds_the_figures_and_no_name(tmp_path, store):
    one, file = shown(tmp_path, store)
    assert one.failed(store) == ""
    text = file.read_text()
    found = {f.name: f for f in families(text)}
    ticks = {s.labels["result"]: s.value for s in found["hadar_ticks"].samples}
    assert ticks == {"acted": 1, "failed": 1}
    assert found["hadar_refusals"].samples[0].value == 1
    assert not any(word in text for word in ("ann", "bob", "secret", "phys"))
    # The next process counts on.
    again = MetricsExporter(config(f'[metrics]\ntextfile = "{file}"\n'))
    again.open(store)
    again.learn(report(), store, 60.0)
    assert 'hadar_ticks_total{result="acted"} 2.0' in file.read_text()


def test_a_file_that_cannot_be_written_is_said_and_ends_nothing(tmp_path, store):
    one = MetricsExporter(config(f'[metrics]\ntextfile = "{tmp_path}/no/where.prom"\n'))
    said = one.learn(report(), store, 60.0)
    assert "metrics.textfile" in said and "No such file" in said


def asked(port, path="/metrics", method="GET", accept="*/*"):
    """(status, type, text)"""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Accept": accept})
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_connections_that_say_nothing_keep_no_scrape_waiting(tmp_path, store):
    port = free_port()
    one, _ = shown(tmp_path, store, port)
    with LoopbackServer(port, one.answer), ExitStack() as silent:
        for _ in range(50):
            for _ in range(6):
                silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            began = time.monotonic()
            assert asked(port)[0] == 200
            # A silent one is closed after 2 s only.
            assert time.monotonic() - began < 1.5


def test_over_http_in_both_formats_and_nothing_else(tmp_path, store):
    port = free_port()
    one, _ = shown(tmp_path, store, port)
    with LoopbackServer(port, one.answer) as server:
        code, _, text = asked(port)
        assert code == 200 and {f.name for f in families(text)} >= {"hadar_ticks"}
        _, kind, text = asked(port, accept="application/openmetrics-text; version=1.0.0")
        assert "openmetrics" in kind and {f.name for f in openmetrics(text)} >= {"hadar_ticks"}
        assert asked(port, "/")[0] == 404 and asked(port, method="POST")[0] == 405
        assert server._listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(HadarError, match=r"metrics\.port"), LoopbackServer(port, one.answer):
            pass
