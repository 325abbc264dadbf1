"""Managed jobs exchange their priorities for an hour, while people change Nice, hold and top.

``python -m benchmarks.exchanges [--minutes 60] [--seed 1] [--interval 10]``

A site with an accounting database, priority/multifactor with ages and fair shares that drift, and
an operator's controller, ``queue.exchange = association``. Two users keep 14 jobs waiting for two
GPUs, 70% of them managed. Every few seconds one of them, or an admin, sets a Nice, holds a job and
releases it later, or uses ``scontrol top``. At the end ``hadar retire``. The queue is read
once a second; with the log of the users' commands and the controller's journal it shows whether a
Nice was lost, a job held or released by no user, or an unmanaged job overtaken. As root only.
"""

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from benchmarks.exchanges.checks import all_wrong
from benchmarks.exchanges.people import PARTITION, People
from benchmarks.exchanges.records import Look, Record, Row
from benchmarks.optin.site import HADAR, MULTIFACTOR, Site, refuse, site
from benchmarks.soak.watched import Watched, join
from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import Settings
from slurm_hadar.slurm.cluster import Cluster, open_cluster

LAYOUT = Layout((NodeGroup("v", 1, "v100", 2),), (PartitionSpec(PARTITION, ("v",), default=True),))
_ACT_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0


def main() -> int:
    """Print what came of it; exit code 1 where a promise was broken or nothing was exchanged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval", type=float, default=10.0, help="s between two ticks")
    options = parser.parse_args()
    if not (0 < options.minutes <= 1e4 and 1 <= options.interval <= 600):
        parser.error("--minutes must be above 0, --interval 1 to 600")
    try:
        refuse()
        with tempfile.TemporaryDirectory(prefix="hadar-exchanges-") as name:
            record, refused = run(Path(name), options.minutes, options.seed, options.interval)
    except HadarError as error:
        print(f"benchmarks.exchanges: {error}", file=sys.stderr)
        return error.exit_code
    acts = Counter(act.what for act in record.acts)
    print(f"{options.minutes:g} min, seed {options.seed}: {len(record.looks)} looks, " + ", ".join(
        f"{count} {what}" for what, count in sorted(acts.items())
    ) + f", {refused} acts refused by Slurm")  # fmt: skip
    print(f"the controller wrote {len(record.written)} Nices of {jobs_written(record)} jobs")
    wrong = all_wrong(record)
    for sentence in wrong:
        print(f"BROKEN {sentence}")
    print(f"{len(wrong)} broken promises")
    return 1 if wrong or not record.written else 0


def jobs_written(record: Record) -> int:
    """How many jobs the controller gave another Nice."""
    return len({job for _, job, _ in record.written})


def run(folder: Path, minutes: float, seed: int, interval_s: float) -> tuple[Record, int]:
    """One run on a site in ``folder``, and how many acts Slurm refused. Raises HadarError."""
    record = Record(interval_s)
    settings: Settings = {
        "queue": {"exchange": "association"},
        "controller": {"interval_s": interval_s, "round_s": interval_s},
    }
    lines = (*MULTIFACTOR, "SchedulerParameters=enable_user_top")
    with site(folder, lines, seed, layout=LAYOUT, settings=settings) as place:
        config = configuration.load(place.box.config_path)
        people = People(place, open_cluster(config.slurm), record, seed)
        place.start_controller()
        _follow(place, open_cluster(config.slurm), people, record, 60 * minutes)
        place.stop_controller()
        done = place.run_as(HADAR, [place.command("hadar"), "retire"])
        if done.returncode:
            raise HadarError(f"hadar retire failed: {done.stdout}{done.stderr}")
        record.retired = _look(open_cluster(config.slurm))
        record.written = _written(config.site.state_dir)
    return record, people.refused


def _follow(place: Site, cluster: Cluster, people: People, record: Record, seconds: float) -> None:
    end = time.monotonic() + seconds

    def look_on() -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                record.looks.append(_look(cluster))
            except SlurmError:
                continue
            time.sleep(max(0.0, began + _LOOK_EVERY_S - time.monotonic()))

    looker = Watched("the looks", look_on)
    looker.start()
    try:
        acts_s = time.monotonic() + _ACT_EVERY_S
        while time.monotonic() < end:
            people.refill()
            place.check()
            if time.monotonic() >= acts_s:
                acts_s = time.monotonic() + _ACT_EVERY_S
                people.act()
            time.sleep(0.2)
    finally:
        end = min(end, time.monotonic())
        join([looker])
    if looker.wrong:
        raise HadarError(looker.wrong[0])


def _look(cluster: Cluster) -> Look:
    at_s = time.time()
    return Look(at_s, tuple(Row.of(job) for job in cluster.read_jobs()))


def _written(state_dir: Path) -> list[tuple[float, str, int]]:
    # The folder is the controller's, and a Store opens none of others.
    with closing(sqlite3.connect(f"file:{state_dir}/hadar.sqlite?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT opened_s, job, details FROM journal WHERE kind='hint'")
        entries = [
            (at_s, job, json.loads(details).get("fields", {})) for at_s, job, details in rows
        ]
    return [(at_s, job, int(fields["Nice"])) for at_s, job, fields in entries if "Nice" in fields]


if __name__ == "__main__":
    sys.exit(main())
