import tracemalloc

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.slurm import hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("None", ()),
        ("v1", ("v1",)),
        ("v[1-2],k1", ("v1", "v2", "k1")),
        ("v[2-3,1]", ("v2", "v3", "v1")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a-b[1,3]-ib", ("a-b1-ib", "a-b3-ib")),
        ("v1,v1", ("v1",)),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert hosts.expand(text) == names


@given(st.sets(st.integers(0, 500), max_size=40))
def test_folding_loses_no_name(numbers: set[int]) -> None:
    names = tuple(f"n{number}" for number in numbers)
    assert set(hosts.expand(hosts.fold(names))) == set(names)


@pytest.mark.parametrize(
    "text",
    ["n[0-999999999]", "n[1-2]" * 40, "a[1-1000]b[1-1000]c[1-1000]", "n[1-60000],m[1-60000]"],
)
def test_a_short_text_for_millions_of_names_is_refused(text: str) -> None:
    with pytest.raises(HadarError):
        hosts.expand(text)


@pytest.mark.parametrize("text", ["@group", "n[1", "n1 n2", "n[a-b]", "n*", "n[1-2]!n1", "$(id)"])
def test_nonsense_and_groups_are_refused(text: str) -> None:
    with pytest.raises(HadarError, match="host list"):
        hosts.expand(text)


@given(st.one_of(st.text(max_size=60), st.text("nab[]-,0123456789", max_size=30)))
def test_any_text_gives_names_or_a_clear_error(text: str) -> None:
    try:
        names = hosts.expand(text, limit=2000)
    except HadarError as error:
        assert "host list" in str(error)
    else:
        assert len(names) <= 2000


@given(
    st.lists(st.from_regex(r"n[0-9]{0,3}(\[[0-9]{1,3}(,0[0-9])?\])?", fullmatch=True), max_size=9)
)
def test_single_names_are_those_of_a_node_set(parts: list[str]) -> None:
    found = [str(name) for part in parts for name in NodeSet(part, resolver=RESOLVER_NOGROUP)]
    assert set(hosts.expand(",".join(parts))) == set(found)


def test_long_lists_of_many_jobs_share_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 lists of 860 names; with names of their own they took 17 MB."""
    texts = [",".join(f"node{3 * k + i:05d}" for k in range(860)) for i in range(300)]
    # One of these for each name took 12 ms a list.
    monkeypatch.setattr(hosts, "NodeSet", None)
    tracemalloc.start()
    try:
        found = [hosts.expand(text) for text in texts]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(names) for names in found] == [860] * 300 and found[1][0] == "node00001"
    assert size < 5e6
