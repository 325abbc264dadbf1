"""What ``hadar run`` makes of signals, without a Slurm: it says so at each tick and goes on."""

import contextlib
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

SITE = """
[site]
rights = "user"
state_dir = "{folder}/state"
exchange_dir = "{folder}/exchange"
[slurm]
conf = "{folder}/slurm.conf"
bin_dir = "{folder}/none"
[controller]
interval_s = {interval_s}
{more}
"""


def written(folder, interval_s, more=""):
    (folder / "hadar.toml").write_text(SITE.format(folder=folder, interval_s=interval_s, more=more))


@contextlib.contextmanager
def daemon(folder):
    (folder / "exchange").mkdir()
    (folder / "none").mkdir()
    me = pwd.getpwuid(os.geteuid()).pw_name
    (folder / "slurm.conf").write_text(f"SlurmctldHost=here(127.0.0.1)\nSlurmUser={me}\n")
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "hadar", "run", "--config", folder / "hadar.toml"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield process, log
    finally:
        process.kill()
        process.wait(60)


def until(process, log, pattern, count=1):
    end = time.monotonic() + 90
    while len(re.findall(pattern, log.read_text())) < count:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def test_a_hangup_rereads_the_configuration_and_a_wrong_one_changes_nothing(tmp_path):
    written(tmp_path, 3600)
    with daemon(tmp_path) as (process, log):
        until(process, log, "nothing done")
        written(tmp_path, 3600, "colour = 1")
        process.send_signal(signal.SIGHUP)
        until(process, log, "not reread, the previous one stays in force: .*colour")
        written(tmp_path, 3600, 'policy = "none of that name"')
        process.send_signal(signal.SIGHUP)
        until(process, log, "not reread, the previous one stays in force: .*none of that name")
        (tmp_path / "hadar.toml").write_text("")
        process.send_signal(signal.SIGHUP)
        until(process, log, "not reread, the previous one stays in force: .*hadar.toml is empty;")
        (tmp_path / "hadar.toml").write_text("[controller]\ninterval_s = 7\n")
        process.send_signal(signal.SIGHUP)
        until(process, log, r"not reread, .*hadar.toml has no \[site\] any more;")
        written(tmp_path, 1)
        process.send_signal(signal.SIGHUP)
        until(process, log, "configuration reread")
        # With an interval of an hour there would be none more.
        until(process, log, "nothing done", 6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
