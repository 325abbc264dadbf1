import re

import pytest

from slurm_hadar import config
from slurm_hadar.domain.errors import UsageError


def test_every_default_is_safe():
    site = config.parse("", "empty")
    assert site.site.mode == "observe"
    assert site.guards.gain_over_cost >= 1


def test_a_type_is_selected_by_its_own_name_unless_said_otherwise():
    site = config.parse('[gpu_types.v100]\n[gpu_types.a100]\nfeature = "ampere"\n', "here")
    assert site.gpu_types["v100"].feature == "v100"
    assert site.gpu_types["a100"].feature == "ampere"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[site]\nmod = 'act'", "site.mod: unknown key; man hadar.toml has"),
        ("[site]\nmode = 'go'", 'site.mode: takes "observe" or "act", not "go"'),
        ("[log]\nfiles = 0", "log.files: takes a number of 1 or more, not 0"),
        ("[log]\nmax_mb = 1e9", "log.max_mb: takes a number of 10000 or less, not 1000000000.0"),
        ("[log]\nfiles = 1.5", "log.files: takes a whole number, not 1.5"),
        ("[log]\nfiles = 'ten'", 'log.files: takes a whole number, not "ten"'),
        ("[log]\nenabled = 'on \"1\"'", 'log.enabled: takes true or false, not "on \\"1\\""'),
        ("[log]\nfiles = true", 'log.files: takes a whole number, not "true"'),
        ("[alerts]\npreempt_held_idle_s = true", 'preempt_held_idle_s: takes a number, not "true"'),
        ("[slurm]\ntimeout_s = 0", "slurm.timeout_s: takes a number above 0, not 0"),
        ("[site]\nname = 5", "site.name: takes a text in quotes, not 5"),
        ("[partitions]\ngroups = ['v100']", "partitions.groups: is a table, written in [brackets]"),
        ("[partitions.groups]\ngpu = 'v100'", "partitions.groups.gpu: takes a list"),
        ("[site", "is not TOML"),
        ("version = 2", "version: takes 1, not 2"),
        ("[site]\nstate_dir = 'here'", 'site.state_dir: takes a path from / on, not "here"'),
        ("[site]\nstate_dir = ''", 'site.state_dir: takes a path from / on, not ""'),
        ("[site]\nstate_dir = 5", "site.state_dir: takes a path in quotes, not 5"),
        ("[profiles]\ntables = ['a.json']", "profiles.tables.0: takes a path from / on"),
        ("[controller]\ninterval_s = inf", "controller.interval_s: takes a finite number, not inf"),
        ("[moving]\nack_wait_s = nan", "moving.ack_wait_s: takes a finite number, not nan"),
        ("[controller.options]\nx = [1]", "controller.options.x: takes a text, a number, true or"),
        ("site = 1", "site: is a table, written in [brackets] with its keys below, not 1"),
        ("[sight]\nmode = 'act'", "sight: unknown key"),
        (
            "[rollout]\nusers = 'ann'",
            'rollout.users: takes a list, written in [brackets], not "ann"',
        ),
        (
            "[alerts]\nmail_domain = 'a b'",
            "alerts.mail_domain: takes a domain of letters, digits, - and ., such as "
            '"example.org", not "a b"',
        ),
        ('[alerts]\nmail_domain = "a\\n"', 'not "a?"'),
        ("[alerts]\nsmtp = 'm:x'", "alerts.smtp: takes HOST or HOST:PORT"),
        ("[alerts]\nmail_from = 'a b'", "alerts.mail_from: takes a mail address without blanks"),
        ("[alerts]\npreempt_held_idle_s = 5", "alerts: preempt_held_idle_s needs enabled = true"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, says):
    with pytest.raises(UsageError) as caught:
        config.parse(text, "hadar.toml")
    assert "hadar.toml" in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)
    # As pydantic words it.
    assert not re.search(r"[Ii]nput|should|valid|pattern", str(caught.value))


TYPO = "[site]\nmode = 'act'\n[rollout]\npercent = 'x'\n[sight]\na = 1\n"


def test_a_mistake_elsewhere_stops_no_command_that_only_looks():
    found = config.parse(TYPO, "hadar.toml", config.TO_ASK)
    assert found.site.mode == "act" and found.rollout == config.Rollout()
    rollout, sight = sorted(found.ignored)
    assert rollout.startswith("rollout.percent: ") and sight.startswith("sight: unknown key")
    with pytest.raises(UsageError, match="rollout"):
        config.parse(TYPO, "hadar.toml")
    with pytest.raises(UsageError, match="mode"):
        config.parse(TYPO.replace("act", "go"), "hadar.toml", config.TO_ASK)
    assert config.parse("[site]\n", "hadar.toml", config.TO_ASK).ignored == ()


MANY = """
version = 2
[site]
mod = "act"
name = "lab"
[controller.options]
x = [1]
y = {z = 1}
w = 3
[gpu_types.v100]
memory = 16
tflops = "fast"
feature = "volta"
[profiles]
tables = ["a.json", 5]
[alerts]
enabled = "perhaps"
preempt_held_idle_s = 5
[guards]
stop_file = "stop"
[sight]
a = 1
"""


def test_a_check_names_all_mistakes_and_reads_the_rest(tmp_path):
    path = tmp_path / "hadar.toml"
    path.write_text(MANY)
    found = config.load_to_check(path)
    assert [said.partition(": ")[0] for said in found.ignored] == [
        *("version", "site.mod", "gpu_types.v100.tflops", "gpu_types.v100.memory"),
        *("guards.stop_file", "controller.options.x", "controller.options.y"),
        *("profiles.tables.0", "profiles.tables.1", "alerts.enabled", "sight"),
    ]
    assert found.site.name == "lab" and found.controller.options == {"w": 3}
    assert found.gpu_types["v100"].feature == "volta" and found.alerts == config.AlertSettings()
    with pytest.raises(UsageError) as caught:
        config.load(path)
    first, more = str(caught.value).split("; ")
    assert first == f"{path}: version: takes 1, not 2"
    assert more == "hadar check names all 11 mistakes of the file"
    # What several keys of a table do wrong together is named once each of them is right.
    path.write_text(MANY.replace('"perhaps"', "false"))
    assert config.load_to_check(path).ignored[-2].startswith("alerts: preempt_held_idle_s needs")
    path.write_text("[site]\nname = 'lab'\n")
    assert config.load_to_check(path).ignored == ()
    path.write_text("[site]\nmod = 1\ncontroller_user = 'nobody-of-that-name'\n")
    mod, user = config.load_to_check(path).ignored
    assert mod.startswith("site.mod: ") and "is no user of this machine" in user
    path.write_text("[site")
    with pytest.raises(UsageError, match="is not TOML"):
        config.load_to_check(path)


def test_what_has_no_effect_any_more_is_read_and_reported():
    old = "[lease]\nlength_s = 300\n[partitions]\nsteer = ['gpu']\nopt_in = ['lab']\n"
    found = config.parse(old, "hadar.toml")
    lease, steer = found.notes
    assert lease.startswith("[lease] has no effect any more") and "remove it" in lease
    assert steer.startswith("partitions.steer has no effect") and "[partitions.groups]" in steer
    new = config.parse("[partitions]\nopt_in = ['lab']\n", "hadar.toml")
    assert found.partitions == new.partitions and new.notes == ()


def test_a_partition_stands_for_those_that_the_site_names():
    found = config.parse("[partitions.groups]\ngpu = ['v100', 'k80']\n", "hadar.toml")
    assert found.partitions.groups == {"gpu": ("v100", "k80")}


@pytest.mark.parametrize("text", [None, b"\xff\xfe"])
def test_what_is_no_text_file_is_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "hadar.toml"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        config.load(path)
    assert str(caught.value).startswith(str(path))
    assert "Errno" not in str(caught.value) and "codec" not in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(UsageError, match="site examples"):
        config.load(tmp_path / "none.toml")


def test_an_unknown_controller_user_is_refused():
    site = config.parse("[site]\ncontroller_user = 'nobody-of-that-name'", "here")
    with pytest.raises(UsageError, match="no user of this machine"):
        _ = site.controller_uid
