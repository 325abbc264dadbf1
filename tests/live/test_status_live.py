"""Every user gets the state and the reasons of their own jobs with one command, from a running
controller and without one, and nothing of others' under PrivateData."""

import importlib.util
import json
import re
import shutil
from http.client import HTTPConnection

import people
import pytest
from people import ADA, BIN, BOB, EVE, HADAR
from scraped import program, scraping

from slurm_hadar.config import load

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

SCRIPT = "#!/bin/sh\n#HADAR types=v100,k80 gpus=1 model=transformer\nsleep 600\n"
HOSTILE = "new\x1b]0;owned\x07t\x1b[2J\r\nfake"


@pytest.fixture(scope="module")
def site():
    with people.staffed() as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_runs(site):
    site.cancel()


def status(site, user, *words):
    return json.loads(site(user, "hadar", "status", "--json", *words))["result"]


def ids(found):
    return {row["id"] for row in found["rows"]}


def top_shows(site, user, job, not_job):
    """``hadar top`` in a terminal of 80x24 that grows to 200x60: the user's own job, and why."""
    if not (shutil.which("tmux") and importlib.util.find_spec("textual")):
        return
    tmux = ["tmux", "-S", str(site.homes[user] / "tmux")]
    # Where these are set they count, not the terminal.
    command = f"exec env -u COLUMNS -u LINES {BIN / 'hadar'} top"
    env = {"SHELL": "/bin/sh", "TERM": "xterm-256color"}

    def screen():
        return site(user, *tmux, "capture-pane", "-p")

    size = ("-x", "80", "-y", "24")
    site(user, *tmux, "-f", "/dev/null", "new-session", "-d", *size, command, env=env)
    try:
        for width, height in ((80, 24), (200, 60)):
            site(user, *tmux, "resize-window", "-x", str(width), "-y", str(height))
            site.until(lambda: job in screen())
            found = screen()
            lines = found.splitlines()
            assert max(map(len, lines)) <= width and len(lines) <= height
            assert "REASON" in found and "acts on" in found and not_job not in found
        assert "owned" not in site(user, *tmux, "display-message", "-p", "#{pane_title}")
        site(user, *tmux, "send-keys", "Enter")
        site.until(lambda: "Last decision" in screen())
        site(user, *tmux, "send-keys", "Escape")
        site.until(lambda: "REASON" in screen())
        site(user, *tmux, "send-keys", "q")
        site.until(lambda: site.run(user, *tmux, "list-sessions").returncode != 0)
    finally:
        site.run(user, *tmux, "kill-server")


def test_each_user_asks_the_running_controller_and_slurm_without_one(site):
    site.fill()
    hers = site.submit(ADA, "-J", HOSTILE, "-p", "k80,v100", script=SCRIPT)
    his = site.submit(BOB, "-J", "salamander", "-p", "k80,v100", script=SCRIPT)
    with site.runs() as log:
        site.until(lambda: f"update job {his}: Partition=" in log.read_text())
        site.until(lambda: ids(status(site, ADA)) == {hers})
        found = status(site, ADA)
        assert found["source"] == "controller" and found["controller"]["state"] == "acts"
        assert found["trust"] == 1.0 and found["gpus"]

        # Slurm shows her his job, so we do; why it waits is his alone.
        def reasons():
            return {row["id"]: row["reason"] for row in status(site, ADA, "--user", "all")["rows"]}

        assert reasons().keys() == {hers, his}
        # Slurm gives a changed job its reason in its next cycle.
        site.until(lambda: re.fullmatch(r"Slurm: \w+", reasons()[his]))
        site.until(lambda: ";" in reasons()[hers])
        shown = site(ADA, "hadar", "status")
        assert "acts on" in shown and hers in shown and his not in shown
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", shown)
        assert ids(status(site, HADAR)) == {hers, his}
        assert "Last decision" in site(ADA, "hadar", "explain", hers)
        assert "What happened" in site(ADA, "hadar", "doctor", hers)
        planned = site(ADA, "hadar", "plan")
        assert f"job {hers}" in planned and his not in planned and "last tick" in planned
        assert "no managed job 99999999" in site(ADA, "hadar", "status", "99999999", code=1)
        for command in ("explain", "doctor"):
            assert f"no job {his} of yours" in site(ADA, "hadar", command, his, code=1)
        assert ids(status(site, EVE)) == set()
        top_shows(site, ADA, hers, his)
        port = load(site.box.config_path).metrics.port
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        served = connection.getresponse().read().decode()
        for text in (served, (site.folder / "run" / "hadar.prom").read_text()):
            assert 'hadar_jobs{managed="yes",state="pending"} 2.0' in text
            assert 'hadar_slurm_queries_total{kind="jobs"}' in text
            assert ADA not in text and "salamander" not in text
    assert not (site.folder / "run" / "hadar.sock").exists()
    # Without a controller on this host.
    found = status(site, ADA)
    assert found["source"] == "Slurm" and ids(found) == {hers}
    assert found["rows"][0]["reason"].startswith("Slurm: ")
    assert "no controller answers" in site(ADA, "hadar", "plan", code=1)
    said = site(ADA, "hadar", "explain", hers)
    assert "(asked for: k80,v100)" in said and "no controller answers" in said
    assert f"no job {his} of yours" in site(ADA, "hadar", "explain", his, code=1)
    site.cancel()


def test_an_interactive_job_is_left_alone_and_shown_as_such(site):
    words = ("-p", "k80,v100", "--gres=gpu:1", "--comment=[hadar1 types=any]", "-J", "shell")
    site(ADA, "salloc", "--no-shell", *words)
    (job,) = site.box.run("squeue", "-h", "-n", "shell", "-o", "%i").split()
    before = site.show(job)
    with site.runs():
        site.until(lambda: ids(status(site, ADA)) == {job})
        found = status(site, ADA)
        assert found["interactive"] == 1 and not found["managed"]
        assert "it is interactive (salloc or srun)" in found["rows"][0]["reason"]
        assert "(1 interactive)" in site(ADA, "hadar", "status")
        assert "Not steered: it is interactive" in site(ADA, "hadar", "explain", job)
        assert "it is interactive" in site(ADA, "hadar", "doctor", job)
    assert "it is interactive" in site(ADA, "hadar", "explain", job)
    assert site.show(job) == before
    site.cancel()


def test_under_private_data_nothing_of_others_is_reported(site):
    conf = site.box.conf
    before = conf.read_text()
    site.fill()
    try:
        hers = site.submit(ADA, "-p", "k80,v100", script=SCRIPT)
        his = site.submit(BOB, "-J", "salamander", "-p", "k80,v100", script=SCRIPT)
        with site.runs() as log:
            site.until(lambda: f"update job {his}: Partition=" in log.read_text())
            site.until(lambda: ids(status(site, BOB)) == {his})
            assert ids(status(site, ADA, "--user", "all")) == {hers, his}
            # It holds for the answers of a controller that runs from its next tick on.
            conf.write_text(f"{before}PrivateData=jobs,nodes,usage\n")
            site.box.run("scontrol", "reconfigure")
            site.until(lambda: ids(status(site, ADA, "--user", "all")) == {hers})
            seen = [
                site(ADA, "hadar", "status", "--user", "all", "--json"),
                site(ADA, "hadar", "status", "--user", BOB, "--why"),
                site(ADA, "hadar", "explain", hers),
                site(ADA, "hadar", "doctor", hers),
            ]
            assert ids(json.loads(seen[0])["result"]) == {hers}
            assert not json.loads(seen[0])["result"]["gpus"]
        for text in seen:
            assert BOB not in text.replace(f"--user {BOB}", "") and "salamander" not in text
            assert not re.search(rf"\b{his}\b", text)
    finally:
        conf.write_text(before)
        site.box.run("scontrol", "reconfigure")
        site.cancel()


def test_a_real_prometheus_scrapes_the_running_controller(site, tmp_path):
    program("prometheus")
    site.fill()
    job = site.submit(ADA, "-p", "k80,v100", script=SCRIPT)
    port = load(site.box.config_path).metrics.port
    with site.runs() as log:
        site.until(lambda: f"update job {job}: Partition=" in log.read_text())
        with scraping(port, tmp_path) as prometheus:
            waiting = 'hadar_jobs{managed="yes",state="pending"}'
            prometheus.until(lambda: prometheus.value(waiting) == "1")
            assert float(prometheus.value('hadar_ticks_total{result="acted"}')) >= 1
            last = float(prometheus.value("hadar_last_tick_timestamp_seconds"))
            # It goes on ticking, and Prometheus sees it.
            prometheus.until(
                lambda: float(prometheus.value("hadar_last_tick_timestamp_seconds")) > last, 120
            )
