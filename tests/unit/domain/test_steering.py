from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain import steering
from slurm_hadar.domain.steering import Steering

names = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True)
gpus = st.dictionaries(names, st.integers(1, 64), max_size=3)
fields = st.sampled_from(["Features", "Partition"])
steerings = st.builds(
    Steering,
    gpus=gpus,
    nodes=st.dictionaries(names, gpus.filter(bool), max_size=8),
    time=st.integers(0, 2**33).map(float),
    moves=st.integers(0, 1000),
    batch=st.integers(0, 10**6),
    was=st.dictionaries(fields, st.text(max_size=30)),
    wrote=st.dictionaries(fields, st.text(max_size=30)),
    leased=st.booleans(),
    foreign=st.lists(fields, unique=True).map(tuple),
    until=st.integers(1, 2**33).map(float),
    ends=st.integers(0, 2**33).map(float),
)


@given(steerings, st.text(st.characters(exclude_characters="[]"), max_size=60))
def test_steering_comes_back_and_other_tools_keep_their_words(ours, others):
    comment = steering.merge(others, ours)
    assert steering.decode(comment) == ours
    assert comment.startswith(others)


def test_a_begin_time_of_an_earlier_release_is_known():
    assert steering.decode("[hadarplan;t=1;lease=1]") == Steering(time=1.0, leased=True)


@given(st.text(max_size=200))
def test_a_damaged_admin_comment_is_none(text):
    found = steering.decode(f"[hadarplan {text}]")
    assert found is None or isinstance(found, Steering)


def test_many_nodes_are_left_out_so_that_it_stays_short():
    ours = Steering(gpus={"v100": 64}, nodes={f"node{i:04}": {"v100": 1} for i in range(64)})
    assert len(steering.merge("", ours)) < 100


@given(steerings)
def test_it_passes_through_the_standard_input_of_scontrol(ours):
    comment = steering.merge("", ours)
    assert comment.isascii() and not set(comment) & set(" '\"\\")
