"""most_batch and noise_scale in a trace: what the simulation makes of them."""

import numpy as np
import pytest

from slurm_hadar import policies
from slurm_hadar.domain.declaration_values import doublings
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.cluster import parse
from slurm_hadar.simulator.engine import simulate
from slurm_hadar.simulator.traces import native

HEAD = "job_id,arrival_s,gpus,samples,model,batch,most_batch,noise_scale\n"


def read(rows):
    return native.read(HEAD + rows, "t.csv", ("v100",), Rates())


def test_a_range_gives_sizes_and_rates():
    work = read("a,0,1,1e6,ResNet-18,16,64,1e5\nb,0,1,1e6,ResNet-18,16,,\n")
    assert work.batches is not None
    assert work.batches.sizes.tolist() == [[16, 32, 64], [0, 0, 0]]
    assert work.batches.noise[0] == 1e5
    assert (np.diff(work.batches.rate[0, 0, 0]) > 0).all()
    assert work.batches.rate[0, 0, 0, 0] == work.rate[0, 0, 0]
    assert not work.batches.rate[1].any()


def test_no_range_no_trait():
    assert read("a,0,1,1e6,ResNet-18,16,,\n").batches is None


@pytest.mark.parametrize(("noise", "faster"), [(1e6, True), (0.0, False)])
def test_ones_uses_it_where_the_noise_scale_says_so(noise, faster):
    work = read(f"a,0,1,1e6,ResNet-18,16,256,{noise:g}\n")
    plain = simulate(work, parse("v100=1", "1"), policies.get("srtf"))
    ones = simulate(work, parse("v100=1", "1"), policies.get("ones"))
    assert (ones.avg_jct_s < 0.9 * plain.avg_jct_s) == faster
    assert ones.avg_jct_s <= plain.avg_jct_s


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("a,0,1,1e6,ResNet-18,,64,1000", "batch"),
        ("a,0,1,1e6,ResNet-18,16,64,", "noise_scale"),
        ("a,0,1,1e6,ResNet-18,16,8,1000", "most_batch"),
        ("a,0,1,1e6,ResNet-18,16,many,1000", "most_batch"),
        ("a,0,1,1e6,ResNet-18,16,64,-1", "noise_scale"),
    ],
)
def test_half_a_range_is_refused(row, word):
    with pytest.raises(UsageError, match=f"line 2.*{word}"):
        read(f"{row}\n")


def test_doublings_end_with_the_most_and_stay_few():
    assert doublings(64, 300) == (64, 128, 256, 300)
    assert doublings(64, 64) == (64,)
    assert len(doublings(1, 10**9)) == 12
