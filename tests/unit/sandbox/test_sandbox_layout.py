import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.sandbox.layout import DEFAULT, Layout, NodeGroup, PartitionSpec

groups = st.builds(
    NodeGroup,
    prefix=st.sampled_from(["v", "p", "node-a", "k"]),
    count=st.integers(1, 50),
    gpu_type=st.just("v100"),
    gpus=st.integers(1, 8),
    more=st.dictionaries(st.sampled_from(["k80", "p100"]), st.integers(1, 4)),
    features=st.lists(st.sampled_from(["ib", "nvme"]), unique=True).map(tuple),
)
layouts = st.lists(groups, min_size=1, unique_by=lambda group: group.prefix).map(
    lambda found: Layout(tuple(found), (PartitionSpec("all", default=True),))
)


@given(layouts)
def test_a_layout_survives_its_record(layout):
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again == layout


@given(layouts)
def test_every_started_node_knows_its_gpus_by_index(layout):
    types = layout.node_types()
    assert list(types) == layout.started
    assert sum(map(len, types.values())) == sum(
        group.count * sum(group.types.values()) for group in layout.groups
    )


def test_the_default_has_three_types_on_six_nodes():
    assert DEFAULT.gpu_types == ["v100", "p100", "k80"]
    assert len(DEFAULT.started) == 6
    names = [partition.name for partition in DEFAULT.all_partitions]
    assert names == ["gpu", "v100", "p100", "k80", "idle"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefix": "v1"},
        {"prefix": "V"},
        {"prefix": "v;reboot"},
        {"prefix": ""},
        {"count": 0},
        {"gpus": 0},
        {"gpu_type": ""},
        {"gpu_type": "v100,x"},
        {"more": {"v100": 1}},
        {"more": {"k80": 0}},
        {"features": ("a b",)},
        {"cpus": 0},
    ],
)
def test_what_slurm_could_not_take_is_refused(wrong):
    with pytest.raises(UsageError):
        NodeGroup(**{"prefix": "v", "count": 2, "gpu_type": "v100", "gpus": 2, **wrong})


def test_names_must_fit_together():
    group = NodeGroup("v", 1, "v100", 1)
    with pytest.raises(UsageError):
        Layout((group, group))
    with pytest.raises(UsageError):
        Layout((group,), (PartitionSpec("a", ("k",)),))
    with pytest.raises(UsageError):
        Layout((NodeGroup("v", 1, "v100", 1, started=False),))
    with pytest.raises(UsageError):
        Layout((NodeGroup("v", 1, "idle", 1),))
    with pytest.raises(UsageError):
        PartitionSpec("a b")
