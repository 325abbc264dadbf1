"""A real Prometheus scrapes the controller's figures, takes the shipped rules, and answers each
query of the shipped dashboard."""

import json
import re
import subprocess
import time

import pytest
from free_ports import free_port
from scraped import RULES, program, scraping

from slurm_hadar import config
from slurm_hadar.controller.metrics import export
from slurm_hadar.controller.metrics.totals import GPU_STATES, Totals
from slurm_hadar.controller.service.server import LoopbackServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

DASHBOARD = json.loads((RULES.parent / "slurm-hadar.dashboard.json").read_text())


def filled():
    """Figures as after some ticks, with a value for each label."""
    totals = Totals()
    for key in ("ticks|acted", "ticks|failed", "phase_s|read", "phase_s|decide", "phase_s|act",
                "tick_bucket|0.5", "tick_s", "decisions|placed", "actions|hint", "refusals",
                "queries|jobs", "moves|moved", "lost_s|without_training", "lost_samples|slower",
                "gained_s", "gained_samples",
                *(f"gpu_s|v100|{one}" for one in GPU_STATES)):  # fmt: skip
        totals.counts[key] = 5.0
    totals.gauges = {
        "last_tick_s": time.time(), "interval_s": 60.0, "acting": 1.0, "jobs|yes|running": 3.0,
        **{f"gpus|v100|{state}": 2.0 for state in GPU_STATES},
    }  # fmt: skip
    return totals


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    program("prometheus")
    ours = free_port()
    metrics = export.MetricsExporter(config.parse(f"[metrics]\nport = {ours}\n", "test"))
    totals = metrics._figures.totals = filled()
    with (
        LoopbackServer(ours, metrics.answer),
        scraping(ours, tmp_path_factory.mktemp("prometheus")) as found,
    ):
        # A rate needs several scrapes that differ.
        for _ in range(4):
            time.sleep(1.1)
            for key in totals.counts:
                totals.counts[key] += 5
        yield found


def test_promtool_finds_nothing_wrong_with_the_rules_and_the_figures():
    promtool = program("promtool")
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr
    metrics = export.MetricsExporter(config.parse("[metrics]\nport = 1\n", "test"))
    metrics._figures.totals = filled()
    text = metrics.answer(-1, b"GET /metrics HTTP/1.1").split(b"\r\n\r\n", 1)[1]
    argv = [promtool, "check", "metrics"]
    checked = subprocess.run(argv, input=text, capture_output=True)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr.decode()


def test_the_alerts_fire_when_they_should(tmp_path):
    """promtool's own test of rules: silent, failing, refused and held idle, and a quiet hour."""
    quiet = "0+0x400"
    alerts = {
        "HadarSilent": ("1h5m", {"hadar_last_tick_timestamp_seconds": "0+0x400"}),
        "HadarTicksFail": ("1h", {'hadar_ticks_total{result="failed"}': "0+1x400"}),
        "HadarRefusals": ("2h", {"hadar_refusals_total": "0+1x400"}),
        "HadarGpusHeldIdle": ("2h", {'hadar_gpus{type="v100",state="held_idle"}': "2+0x400"}),
    }
    usual = {
        "hadar_last_tick_timestamp_seconds": "0+60x400",
        "hadar_interval_seconds": "60+0x400",
        'hadar_ticks_total{result="failed"}': quiet,
        "hadar_refusals_total": quiet,
        'hadar_gpus{type="v100",state="held_idle"}': quiet,
        "hadar_build_info": "1+0x400",
    }
    tests = []
    for name, (when, wrong) in alerts.items():
        for fires in (True, False):
            series = {**usual, **(wrong if fires else {})}
            rows = [{"series": key, "values": text} for key, text in series.items()]
            expr = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
            wanted = [{"labels": "{}", "value": float(fires)}]
            check = [{"expr": expr, "eval_time": when, "exp_samples": wanted}]
            tests.append({"interval": "1m", "input_series": rows, "promql_expr_test": check})
    file = tmp_path / "test.yml"
    # JSON is YAML too.
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m",
                                "tests": tests}))  # fmt: skip
    argv = [program("promtool"), "test", "rules", file]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_scrapes_and_evaluates_the_rules(prometheus):
    assert prometheus.value("hadar_jobs{managed='yes',state='running'}") == "3"
    prometheus.until(lambda: prometheus.value("hadar:gpus_busy:ratio") == "0.5")
    groups = prometheus.api("rules")["data"]["groups"]
    prometheus.until(
        lambda: all(
            rule["health"] == "ok"
            for group in prometheus.api("rules")["data"]["groups"]
            for rule in group["rules"]
        )
    )
    assert {rule["name"] for group in groups for rule in group["rules"]} >= {"HadarSilent"}


def test_each_query_of_the_dashboard_has_an_answer(prometheus):
    queries = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
    assert len(queries) > 10
    for query in queries:
        prometheus.until(lambda query=query: prometheus.value(query) not in (None, "NaN"))


def test_rules_and_dashboard_speak_of_figures_that_there_are():
    known = {one.name for one in (*export._COUNTERS, *export._GAUGES)}
    known |= {f"{one.name}_total" for one in export._COUNTERS}
    known |= {"hadar_build_info", "hadar_tick_duration_seconds_bucket"}
    text = RULES.read_text() + json.dumps(DASHBOARD)
    assert set(re.findall(r"\bhadar_\w+", text)) <= known
