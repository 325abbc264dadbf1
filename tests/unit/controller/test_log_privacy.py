"""No path, and nobody's name, stands in the log above the level, quoted or not."""

import json
import os
import pwd

import pytest
from hand_made import NOW, config, dictate, job, look, observation

from slurm_hadar.config import parse
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, diff
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.exchange_folder import KEEP_S, ExchangeFolder
from slurm_hadar.controller.presentation import event_log
from slurm_hadar.controller.presentation.log_file import open_log
from slurm_hadar.controller.presentation.privacy import Privacy
from slurm_hadar.controller.report import TickReport
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.plan_file import plan_path

LEVELS = ["none", "ids", "names"]


@pytest.fixture(params=LEVELS)
def people(request):
    return request.param


def settings(home, people, rights="user"):
    """Of somebody who runs the controller in per-user mode; his home has an odd name."""
    return parse(
        f'[site]\nrights = "{rights}"\nmode = "act"\nstate_dir = "{home}/state"\n'
        f'exchange_dir = "{home}/slurm-hadar-exchange"\n'
        f'[guards]\nstop_file = "{home}/stop"\n'
        f'[log]\npeople = "{people}"\nfile = "{home}/h.log"\n',
        "test",
    )


@pytest.fixture
def home(tmp_path):
    """SECRET is what must not be read; the home is reached through a link."""
    there = tmp_path / "SECRET ann's"
    (tmp_path / "SECRETdisk" / "slurm-hadar-exchange").mkdir(parents=True)
    there.symlink_to(tmp_path / "SECRETdisk")
    return there


def lines(site):
    text = site.log.file.read_text()
    return text, [json.loads(line) for line in text.splitlines()]


def test_folders_are_named_by_their_key(home, people):
    site = settings(home, people)
    log, store = open_log(site), Store.open(site.site.state_dir)
    folder = site.site.exchange_dir
    exchange = ExchangeFolder(folder)
    old = plan_path(folder, "77")
    old.write_text("{}")
    os.utime(old, (NOW - 2 * KEEP_S, NOW - 2 * KEEP_S))
    exchange.read([])
    said = exchange.tidy([], NOW)
    assert str(folder) in said[0]
    said = [
        *said,
        f"{site.guards.stop_file} exists: nothing is changed",
        f"the heartbeat in {folder} cannot be written (No space left on device): its disk is full",
        f"the state file was damaged and is now {site.site.state_dir}/hadar.sqlite.damaged-20261",
        f"cannot read {folder}/plan.12_3.json, {folder}/SECRET.json or /SECRET/elsewhere/x",
        f"another one: {folder}-SECRET, ~SECRET/.ssh and (/net/SECRET) at 980 samples/s on k1/k80",
    ]
    shown = observation([])
    view = look(shown)
    means = diff(view, dictate(view.view, {}), shown, site, MoveBudget(10))
    report = TickReport(shown, view, dictate(view.view, {}), means, True, notices=tuple(said))
    event_log.write(log, store, report)
    # SQLite tells where a link leads.
    (home / "state" / "hadar.sqlite").rename(home / "state" / "gone")
    with pytest.raises(HadarError) as damaged:
        event_log.write(log, store, report)
    assert "SECRETdisk" in str(damaged.value)
    event_log.fault(log, str(damaged.value))
    store.close()

    text, (tick, fault) = lines(site)
    assert "SECRET" not in text and str(home) not in text
    notes = tick["notes"]
    assert notes[0] == "1 file of ended jobs removed from site.exchange_dir"
    assert notes[1] == "guards.stop_file exists: nothing is changed"
    assert notes[2].startswith("the heartbeat in site.exchange_dir cannot be written (No space")
    assert "is now site.state_dir/hadar.sqlite.damaged-20261" in notes[3]
    assert notes[4] == "cannot read site.exchange_dir/plan.12_3.json, site.exchange_dir/... or ..."
    assert notes[5].endswith(" at 980 samples/s on k1/k80")
    assert fault["what"] == (
        "the state file site.state_dir/hadar.sqlite was removed; a new one is created"
    )


def test_what_is_quoted_is_not_shown_below_names(home, people):
    privacy = Privacy(settings(home, people))
    for words in (
        f"Slurm's answer {'SECRET'!r} is odd",
        f"the jobs' owner said {'SEC' + chr(39) + 'RET SECRET'!r} and {'SECRET'!r}",
        f"it said {'SECRET' + chr(34) + chr(39) + 'SECRET'!r}",
        f"it said {b'SECRET'!r} and {'SECRET'!r}"[:-2],
        'it said "SECRET',
    ):
        shown = privacy.text(words)
        assert ("SECRET" in shown) == (people == "names"), shown
        assert "said" in shown or "Slurm's answer" in shown
    odd = "/SECRET its/it's.json"
    assert "SECRET" not in privacy.text(f"cannot open {odd!r}: No such file")


def test_names_of_people_are_not_shown_below_names(home, people):
    me = pwd.getpwuid(os.getuid()).pw_name
    privacy = Privacy(settings(home, people))
    ann = job("1", user="ann", account="physics+x")
    words = f"job 9: ann is in physics+x, as {me} said; annex and physics are not"
    without = "job 9: ... is in ..., as ... said; annex and physics are not"
    assert privacy.text(words, [ann]) == (words if people == "names" else without)
    # Written after an outage, when Slurm has forgotten the job.
    late = "partition gpu does not admit account physics+x; nor the groups of ann, user=ann"
    gone = "partition gpu does not admit account ...; nor the groups of ..., user=..."
    assert privacy.text(late) == (late if people == "names" else gone)
    # The controller of a site has a user of its own.
    site = Privacy(settings(home, people, "operator"))
    assert site.text(f"another {me} ticks") == f"another {me} ticks"
    assert (
        privacy.person(ann)
        == {
            "none": {},
            "ids": {"uid": 1000},
            "names": {"uid": 1000, "user": "ann", "name": ann.name, "account": "physics+x"},
        }[people]
    )


def test_the_home_of_whoever_runs_it_is_not_reported(tmp_path, people):
    privacy = Privacy(settings(tmp_path, people))
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert home not in privacy.text(f"no room in {home}") and home != "/"
    assert privacy.text(f"read {home}/a/b") == "read ..."


def test_a_long_odd_text_takes_no_time():
    privacy = Privacy(config())
    for odd in ("'\\" * 50_000, "'a" * 50_000, '"\\' * 50_000, "/a" * 50_000, "~" * 50_000):
        assert len(privacy.text(odd)) <= 4000
