"""A real Prometheus that scrapes one port of this host."""

import json
import shutil
import subprocess
import time
import urllib.parse
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from free_ports import free_port
from missing import missing

RULES = Path(__file__).parents[2] / "packaging" / "prometheus" / "slurm-hadar.rules.yml"


def program(name):
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not there (Debian's package prometheus)")
    return found


class Prometheus:
    """One that runs. ``port``: its own."""

    def __init__(self, port, folder):
        self.port, self.folder = port, folder

    def api(self, path, **words):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(words)}")
        answer = connection.getresponse()
        text = answer.read()
        # While it starts it says so in plain words.
        return json.loads(text) if answer.headers["Content-Type"] == "application/json" else {}

    def value(self, query):
        try:
            rows = self.api("query", query=query).get("data", {}).get("result", [])
        except OSError:
            return None
        return rows[0]["value"][1] if rows else None

    def until(self, holds, seconds=60):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.3)


@contextmanager
def scraping(target, folder):
    """Scrapes port ``target`` once a second, with the shipped rules, until it has answered."""
    binary, port = program("prometheus"), free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}']\n"
        "scrape_configs: [{job_name: hadar, static_configs: "
        f"[{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    argv = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/d",
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        try:
            found = Prometheus(port, folder)
            found.until(lambda: found.value("up{job='hadar'}") == "1")
            yield found
        finally:
            running.terminate()
            running.wait(30)
