import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.slurm import tres

TYPES = st.sampled_from(["v100", "p100", "k80", "a100-80g", "1g.5gb", "3090"])


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", {}),
        ("(null)", {}),
        ("N/A", {}),
        ("gpu", {"": 1}),
        ("gpu:2", {"": 2}),
        ("gpu:v100", {"v100": 1}),
        ("gpu:v100:2", {"v100": 2}),
        ("gpu:3090:2", {"3090": 2}),
        ("gres:gpu:v100:2", {"v100": 2}),
        ("gres/gpu:v100:2", {"v100": 2}),
        ("gpu:v100:2(IDX:0-1)", {"v100": 2}),
        ("gpu:v100:2(S:0-1),gpu:k80:4(S:0,1)", {"v100": 2, "k80": 4}),
        ("gpu:p100:1(IDX:0),gpu:k80:2(IDX:2-3)", {"p100": 1, "k80": 2}),
        ("gpu:v100:0(IDX:N/A)", {}),
        ("gpu:v100:no_consume:4", {"v100": 4}),
        ("gpu:1k", {"": 1024}),
        ("gpu:a:2M", {"a": 2 * 1024**2}),
        ("gres/gpu=2,gres/gpu:v100=2", {"v100": 2}),
        ("gres/gpu:v100=2,gres/gpu=3", {"v100": 2, "": 1}),
        ("cpu=4,mem=4G,node=2,billing=4,gres/gpu=2", {"": 2}),
        ("cpu=2,gres/gpu:v100=1", {"v100": 1}),
        ("gres/gpumem=80G,gres/gpuutil=50,gres/shard=4,mps:100", {}),
        ("gpu:v100:1,gpu:v100:1", {"v100": 2}),
    ],
)
def test_forms(text: str, gpus: dict[str, int]) -> None:
    assert tres.parse_gpus(text) == gpus


@pytest.mark.parametrize("text", ["gpu:v100:two", "gpu:a:b:2", "gpu:v100=x", "gpu=", "gpu:=x"])
def test_nonsense_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(HadarError, match="not understood"):
        tres.parse_gpus(text)


@given(
    st.dictionaries(TYPES, st.integers(1, 9999), max_size=4),
    st.sampled_from(["", "gres:", "gres/"]),
)
def test_typed_counts_come_back(counts: dict[str, int], prefix: str) -> None:
    text = ",".join(f"{prefix}gpu:{name}:{count}(IDX:0,2-3)" for name, count in counts.items())
    assert tres.parse_gpus(text) == counts


@given(st.dictionaries(TYPES, st.integers(1, 9999), min_size=1), st.integers(0, 50), st.randoms())
def test_a_total_is_never_added_to_its_parts(
    counts: dict[str, int], untyped: int, random: object
) -> None:
    total = sum(counts.values()) + untyped
    parts = [f"gres/gpu={total}", *(f"gres/gpu:{name}={count}" for name, count in counts.items())]
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert sum(tres.parse_gpus(",".join(parts)).values()) == total


@given(st.one_of(st.text(), st.text("gpures:/=,()0123456789kMIDX-_v")))
def test_any_text_gives_counts_or_a_clear_error(text: str) -> None:
    try:
        counts = tres.parse_gpus(text)
    except HadarError as error:
        assert "not understood" in str(error)
    else:
        assert all(count > 0 for count in counts.values())


@pytest.mark.parametrize("prefix", ["", "gres:", "gres/"])
def test_requests_as_each_release_takes_them(prefix: str) -> None:
    text = f"{prefix}gpu:v100:2,{prefix}gpu:k80:1"
    assert tres.bare(text) == "gpu:v100:2,gpu:k80:1"
    assert tres.prefixed(text, (22, 5, 8)) == "gres:gpu:v100:2,gres:gpu:k80:1"
    assert tres.prefixed(text, (24, 11, 5)) == "gres/gpu:v100:2,gres/gpu:k80:1"


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("gpu:v100:0(IDX:N/A),shard:v100:0(IDX:N/A),mps:0", {}),
        ("gpu:v100:1(IDX:1),shard:v100:1(IDX:0),mps:0", {"v100": 2}),
        ("gpu:v100:1(IDX:1),shard:v100:2(2/4,0/4,0/4,0/4)", {"v100": 2}),
        ("gpu:0,shard:12(IDX:0-1,3)", {"": 3}),
        ("gpu:a100-sxm:1,mps:a100-sxm:150(100/100,50/100,0/100)", {"a100-sxm": 3}),
        ("", {}),
    ],
)
def test_a_gpu_of_which_parts_are_given_out_is_in_use(text, used):
    assert tres.gpus_used(text) == used


@given(st.text("shardmpgu:()IDX0123456789/,-.KN", max_size=60))
def test_any_text_of_shared_gpus_is_numbers_or_one_error(text):
    try:
        counts = tres.gpus_used(text)
    except HadarError:
        return
    assert all(number > 0 for number in counts.values())
