"""The network's options of ``hadar simulate jobs``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slurm_hadar.cli.main import app

_HEAD = "job_id,arrival_s,gpus,samples,batch,rate_v100,gradient_mb\n"


@pytest.fixture
def figures(tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text(_HEAD + "a,0,8,36000,64,10,500\nb,0,8,36000,64,10,0\n")
    words = ["simulate", "jobs", str(trace), "--cluster", "v100=16", "--nodes-per-rack", "1",
             "--policy", "network_never_wait", "--json"]  # fmt: skip

    def run(*more: str) -> dict[str, float]:
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, done.output
        found: dict[str, float] = json.loads(done.stdout)["result"][0]
        return found

    return run


def test_links_cost_time_and_the_part_is_reported(figures) -> None:
    free = figures()
    assert "communication_share" not in free and free["makespan_h"] == pytest.approx(1.0)
    # 64 samples in 6.4 s, of which 3.2 s hide; 875 MB at 125 MB/s take 7 s.
    slow = figures("--nic-gbps", "1")
    assert slow["makespan_h"] == pytest.approx(10.2 / 6.4)
    part = (10.2 - 6.4) / (10.2 + 6.4)
    assert slow["communication_share"] == pytest.approx(part, abs=1e-3)
    worse = figures("--nic-gbps", "1", "--overlap", "0", "--oversubscription", "2")
    assert worse["makespan_h"] == pytest.approx((6.4 + 14) / 6.4)
    assert figures("--nic-gbps", "100")["communication_share"] == 0.0


def test_a_network_that_cannot_be_is_one_sentence(figures, tmp_path: Path) -> None:
    words = ["simulate", "jobs", str(tmp_path / "t.csv"), "--cluster", "v100=16"]
    done = CliRunner().invoke(app, [*words, "--nic-gbps", "10", "--overlap", "2"])
    assert "network overlap is 2.0; it must be 0 to 1" in str(done.exception or done.output)
