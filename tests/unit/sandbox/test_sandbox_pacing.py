import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.sandbox import pacing

names = st.text("abc-18", min_size=1, max_size=6)
bases = st.dictionaries(
    names,
    st.dictionaries(
        st.sampled_from(["v100", "k80"]),
        st.dictionaries(st.integers(1, 8), st.floats(1, 1e5), min_size=1),
        min_size=1,
    ),
)


@given(bases, st.integers(0, 1000))
def test_each_model_and_type_is_off_by_one_factor_of_at_most_a_quarter(base, seed):
    true = pacing.true_rates(base, seed)
    assert true.keys() == base.keys()
    for model, by_type in base.items():
        assert true[model].keys() == by_type.keys()
        for kind, counts in by_type.items():
            factors = [true[model][kind][str(n)] / rate for n, rate in counts.items()]
            assert min(factors) >= 0.75 and max(factors) <= 1.25
            assert max(factors) == pytest.approx(min(factors))


def test_the_factor_depends_on_seed_model_and_type_alone():
    base = {"ResNet-18": {"v100": {1: 100.0}, "k80": {1: 100.0}}, "LM": {"v100": {1: 100.0}}}
    true = pacing.true_rates(base, 1)
    assert true == pacing.true_rates(base, 1)
    assert pacing.true_rates({"LM": base["LM"]}, 1)["LM"] == true["LM"]
    assert pacing.true_rates({"resnet18": base["ResNet-18"]}, 1)["resnet18"] == true["ResNet-18"]
    other = pacing.true_rates(base, 2)
    seen = [t[m][k]["1"] for t in (true, other) for m in base for k in base[m]]
    assert len(set(seen)) == 6


def test_the_shipped_models_have_rates_under_both_names():
    rates = pacing.shipped_rates(["v100", "k80", "nosuch"])
    assert rates["ResNet-18"] == rates["resnet18"]
    assert set(rates["resnet18"]) == {"v100", "k80"}
    assert rates["resnet18"]["v100"][1] > rates["resnet18"]["k80"][1] > 0


def test_the_file_is_what_a_training_reads():
    from slurm_hadar.sandbox.gpu_emulation import true_rate

    content = pacing.pacing_table({"v1": ["v100"]}, pacing.shipped_rates(["v100"]), 3)
    read = json.loads(json.dumps(content))
    assert (read["version"], read["time_scale"], read["nodes"]) == (1, 1.0, {"v1": ["v100"]})
    assert true_rate(read["rates"], "resnet18", {"v100": 1}) > 0
