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
        ("[site]\nmod = 'act'", "site.mod"),
        ("[site]\nmode = 'go'", "site.mode"),
        ("[log]\nfiles = 0", "log.files"),
        ("[partitions]\ngroups = ['v100']", "partitions.groups"),
        ("[partitions.groups]\ngpu = 'v100'", "partitions.groups.gpu"),
        ("[site", "is not TOML"),
        ("version = 2", "version"),
        ("[site]\nstate_dir = 'here'", "site.state_dir: a path from / on"),
        ("[site]\nstate_dir = ''", "site.state_dir: a path from / on"),
        ("[site]\nstate_dir = 5", "site.state_dir: takes a path in quotes"),
        ("[profiles]\ntables = ['a.json']", "profiles.tables.0: a path from / on"),
        ("[controller]\ninterval_s = inf", "controller.interval_s"),
        ("[moving]\nack_wait_s = nan", "moving.ack_wait_s"),
        ("site = 1", "site: this is a table"),
        ("[sight]\nmode = 'act'", "sight: unknown key"),
        ("[rollout]\nusers = 'ann'", "rollout.users: takes a list"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, says):
    with pytest.raises(UsageError) as caught:
        config.parse(text, "hadar.toml")
    assert "hadar.toml" in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_what_has_no_effect_any_more_is_read_and_told():
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
