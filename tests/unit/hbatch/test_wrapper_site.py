"""The small JSON and the heartbeat: written by one side, read by the other."""

import json
import os

import pytest

from slurm_hadar import config, paths
from slurm_hadar.cli.wrapper_site import SiteError, controller_acts, read_site
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime.heartbeat import write_heartbeat

TOML = """
[site]
mode = "act"
exchange_dir = "{folder}"
[slurm]
bin_dir = "/opt/slurm/bin"
conf = "/opt/slurm/etc/slurm.conf"
[gpu_types.v100]
memory_gb = 16
[gpu_types.a100]
feature = "ampere"
[partitions]
opt_in = ["gpu"]
[wrapper]
quiet = true
default_types = "any"
"""


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "hadar.toml"
    path.write_text(TOML.format(folder=tmp_path))
    return path


def written(toml):
    path = write_wrapper_site(config.load(toml), toml)
    return read_site(str(path), str(toml))


def test_what_is_written_is_read_back(toml, tmp_path):
    site = written(toml)
    assert site.acts and site.quiet and not site.stale
    assert site.exchange_dir == str(tmp_path)
    assert site.controller_uid == os.getuid()
    assert site.lease_s == 300
    assert site.features == {"v100": "v100", "a100": "ampere"}
    assert site.memory_mb == {"v100": 16384, "a100": 0}
    assert site.opt_in == ("gpu",)
    assert site.default_types == "any"
    assert site.sbatch == "/opt/slurm/bin/sbatch"
    assert site.slurm_conf == "/opt/slurm/etc/slurm.conf"


def test_the_file_is_readable_by_all_and_alone(toml, tmp_path):
    path = write_wrapper_site(config.load(toml), toml)
    assert path == config.wrapper_path(toml) == tmp_path / "hadar.hbatch.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hadar.hbatch.json", "hadar.toml"]


def test_a_folder_that_cannot_be_written_is_told(toml):
    site = config.load(toml)
    with pytest.raises(UsageError, match="cannot be written"):
        write_wrapper_site(site, toml.parent / "gone" / "hadar.toml")


def test_a_changed_toml_makes_it_stale(toml):
    written(toml)
    toml.write_text(toml.read_text() + "\n")
    assert read_site(paths.wrapper_file(str(toml)), str(toml)).stale


def test_no_file_is_no_site(tmp_path):
    assert read_site(str(tmp_path / "none.json"), str(tmp_path / "none.toml")) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1}', "[" * 9999])
def test_a_damaged_file_is_an_error(tmp_path, text):
    path = tmp_path / "hadar.hbatch.json"
    path.write_text(text)
    with pytest.raises(SiteError):
        read_site(str(path), str(tmp_path / "hadar.toml"))


@pytest.mark.parametrize("key", ["mode", "types", "lease_s", "controller_uid", "opt_in", "sbatch"])
@pytest.mark.parametrize("value", [None, True, [1], -1])
def test_a_field_of_the_wrong_kind_is_an_error(toml, key, value):
    path = write_wrapper_site(config.load(toml), toml)
    source = json.loads(path.read_text())
    path.write_text(json.dumps({**source, key: value}))
    with pytest.raises(SiteError):
        read_site(str(path), str(toml))


def heartbeat_at(folder):
    return json.loads((folder / "heartbeat.json").read_text())["time"]


@pytest.mark.parametrize(
    ("age", "acts"), [(0, True), (209, True), (211, False), (-209, True), (-211, False)]
)
def test_a_heartbeat_is_believed_for_three_intervals_and_a_half_minute(toml, tmp_path, age, acts):
    site = written(toml)
    write_heartbeat(tmp_path, "act", 60.0)
    assert controller_acts(site, heartbeat_at(tmp_path) + age) is acts


def test_an_observing_controller_does_not_act(toml, tmp_path):
    site = written(toml)
    write_heartbeat(tmp_path, "observe", 60.0)
    assert not controller_acts(site, heartbeat_at(tmp_path))


def test_somebody_elses_heartbeat_is_not_believed(toml, tmp_path):
    site = written(toml)
    site.controller_uid += 1
    write_heartbeat(tmp_path, "act", 60.0)
    assert not controller_acts(site, heartbeat_at(tmp_path))


def test_links_pipes_and_rubbish_are_not_believed(toml, tmp_path):
    site = written(toml)
    path = tmp_path / "heartbeat.json"
    assert not controller_acts(site, 0.0)
    write_heartbeat(tmp_path, "act", 60.0)
    now = heartbeat_at(tmp_path)
    path.rename(tmp_path / "other.json")
    path.symlink_to(tmp_path / "other.json")
    assert not controller_acts(site, now)
    path.unlink()
    os.mkfifo(path)
    assert not controller_acts(site, now)
    path.unlink()
    path.write_text('{"version": 1, "mode": "act", "time": "now", "interval_s": 60}')
    assert not controller_acts(site, now)


def test_the_configuration_is_looked_for_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.config_file({}) == "/etc/slurm-hadar/hadar.toml"
    own = tmp_path / ".config/slurm-hadar/hadar.toml"
    own.parent.mkdir(parents=True)
    own.touch()
    assert paths.config_file({}) == str(own)
    assert paths.config_file({"HADAR_CONFIG": "/a.toml"}) == "/a.toml"
