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
        ("[lease]\nlength_s = 1", "lease.length_s"),
        ("[site", "is not TOML"),
        ("version = 2", "version"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, says):
    with pytest.raises(UsageError) as caught:
        config.parse(text, "hadar.toml")
    assert "hadar.toml" in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(UsageError, match="site examples"):
        config.load(tmp_path / "none.toml")


def test_an_unknown_controller_user_is_refused():
    site = config.parse("[site]\ncontroller_user = 'nobody-of-that-name'", "here")
    with pytest.raises(UsageError, match="no user of this machine"):
        _ = site.controller_uid
