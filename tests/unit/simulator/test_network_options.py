"""The network's options of ``hadar simulate jobs``."""

import json

from typer.testing import CliRunner

from slurm_hadar.cli.main import app

_SMALL = ["simulate", "jobs", "mixed_60", "--cluster", "v100=12,p100=12,k80=12", "--json",
          "--policy", "network_never_wait", "--nodes-per-rack", "2"]  # fmt: skip


def figures(*words: str) -> dict[str, float]:
    done = CliRunner().invoke(app, [*_SMALL, *words])
    assert done.exit_code == 0, done.output
    found: dict[str, float] = json.loads(done.stdout)["result"][0]
    return found


def test_links_cost_time_and_the_part_is_told() -> None:
    free = figures()
    assert "communication_share" not in free
    wide = figures("--nic-gbps", "100")
    narrow = figures("--nic-gbps", "5", "--oversubscription", "4", "--overlap", "0")
    assert 0.0 <= wide["communication_share"] < narrow["communication_share"] < 1.0
    assert free["avg_jct_h"] <= wide["avg_jct_h"] < narrow["avg_jct_h"]


def test_a_network_that_cannot_be_is_one_sentence() -> None:
    done = CliRunner().invoke(app, [*_SMALL, "--nic-gbps", "10", "--overlap", "2"])
    assert "network overlap is 2.0; it must be 0 to 1" in str(done.exception or done.output)


def test_a_native_trace_may_say_how_much_its_gpus_exchange(tmp_path) -> None:  # type: ignore[no-untyped-def]
    trace = tmp_path / "t.csv"
    head = "job_id,arrival_s,gpus,samples,batch,rate_v100,gradient_mb\n"
    trace.write_text(head + "a,0,8,36000,64,10,500\nb,0,8,36000,64,10,0\n")
    words = ["simulate", "jobs", str(trace), "--cluster", "v100=16", "--policy", "fifo", "--json"]
    done = CliRunner().invoke(app, [*words, "--nic-gbps", "1"])
    assert done.exit_code == 0, done.output
    slow = json.loads(done.stdout)["result"][0]
    # 64 samples in 6.4 s, of which 3.2 s hide; 875 MB at 125 MB/s take 7 s: 10.2 s for 6.4 s.
    assert slow["communication_share"] > 0.1
    assert abs(slow["makespan_h"] - 10.2 / 6.4) < 0.01
