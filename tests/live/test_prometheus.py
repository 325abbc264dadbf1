"""A real Prometheus scrapes the controller's figures, takes the shipped rules, and answers each
query of the shipped dashboard."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest
from missing import missing

from slurm_hadar import config
from slurm_hadar.controller.metrics import export
from slurm_hadar.controller.metrics.totals import GPU_STATES, Totals
from slurm_hadar.controller.service.server import LoopbackServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PACKAGING = Path(__file__).parents[2] / "packaging" / "prometheus"
RULES = PACKAGING / "slurm-hadar.rules.yml"
DASHBOARD = json.loads((PACKAGING / "slurm-hadar.dashboard.json").read_text())


def program(name):
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not there (Debian's package prometheus)")
    return found


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    binary, folder = program("prometheus"), tmp_path_factory.mktemp("prometheus")
    ours, its = free_port(), free_port()
    metrics = export.MetricsExporter(config.parse(f"[metrics]\nport = {ours}\n", "test"))
    metrics._figures.totals = filled()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}']\n"
        "scrape_configs: [{job_name: hadar, static_configs: "
        f"[{{targets: ['127.0.0.1:{ours}']}}]}}]\n"
    )
    with LoopbackServer(ours, metrics.answer), (folder / "log").open("w") as log:
        argv = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/d",
                f"--web.listen-address=127.0.0.1:{its}"]  # fmt: skip
        running = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        try:
            found = SimpleNamespace(port=its, totals=metrics._figures.totals, folder=folder)
            until(lambda: value(found, "up{job='hadar'}") == "1", found)
            # A rate needs several scrapes that differ.
            for _ in range(4):
                time.sleep(1.1)
                for key in found.totals.counts:
                    found.totals.counts[key] += 5
            yield found
        finally:
            running.terminate()
            running.wait(30)


def api(prometheus, path, **words):
    connection = HTTPConnection("127.0.0.1", prometheus.port, timeout=10)
    connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(words)}")
    answer = connection.getresponse()
    text = answer.read()
    # While it starts it says so in plain words.
    return json.loads(text) if answer.headers["Content-Type"] == "application/json" else {}


def value(prometheus, query):
    try:
        rows = api(prometheus, "query", query=query).get("data", {}).get("result", [])
    except OSError:
        return None
    return rows[0]["value"][1] if rows else None


def until(holds, prometheus, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, (prometheus.folder / "log").read_text()
        time.sleep(0.3)


def test_promtool_finds_nothing_wrong_with_the_rules_and_the_figures():
    promtool = program("promtool")
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr
    metrics = export.MetricsExporter(config.parse("[metrics]\nport = 1\n", "test"))
    metrics._figures.totals = filled()
    text = metrics.answer(-1, b"GET /metrics HTTP/1.1").split(b"\r\n\r\n", 1)[1]
    argv = [promtool, "check", "metrics"]
    done = subprocess.run(argv, input=text, capture_output=True)
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()


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
    assert value(prometheus, "hadar_jobs{managed='yes',state='running'}") == "3"
    until(lambda: value(prometheus, "hadar:gpus_busy:ratio") == "0.5", prometheus)
    groups = api(prometheus, "rules")["data"]["groups"]
    until(lambda: all(rule["health"] == "ok" for group in api(prometheus, "rules")["data"]["groups"]
                      for rule in group["rules"]), prometheus)  # fmt: skip
    assert {rule["name"] for group in groups for rule in group["rules"]} >= {"HadarSilent"}


def test_each_query_of_the_dashboard_has_an_answer(prometheus):
    queries = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
    assert len(queries) > 10
    for query in queries:
        until(lambda query=query: value(prometheus, query) not in (None, "NaN"), prometheus)


def test_rules_and_dashboard_speak_of_figures_that_there_are():
    known = {one.name for one in (*export._COUNTERS, *export._GAUGES)}
    known |= {f"{one.name}_total" for one in export._COUNTERS}
    known |= {"hadar_build_info", "hadar_tick_duration_seconds_bucket"}
    text = RULES.read_text() + json.dumps(DASHBOARD)
    assert set(re.findall(r"\bhadar_\w+", text)) <= known
