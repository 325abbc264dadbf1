import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.declaration_values import CountList
from slurm_hadar.domain.errors import UsageError

words = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=20)
ranges = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(lambda r: (min(r), max(r)))
declarations = st.builds(
    Declaration,
    model=st.one_of(st.just(""), words),
    types=st.one_of(st.just(("any",)), st.lists(words, max_size=4).map(tuple)),
    gpus=st.none()
    | ranges
    | st.sets(st.integers(1, 99), min_size=2, max_size=16).map(sorted).map(CountList),
    gpu_mem=st.integers(0, 10**6),
    batch=st.none() | ranges,
    samples=st.integers(0, 10**12),
    checkpoint=st.sampled_from(
        ["", "yes", "signal", "restart", "watch:/a/b/c?-*.pt", "watch:%j=x"]
    ),
    signal=st.sampled_from(["USR1", "USR2", "TERM", "B:USR1@60", "F:HUP"]),
    lose=st.none() | st.integers(0, 1000).map(float),
    checkpoint_exit_code=st.integers(0, 125),
    max_requeues=st.integers(0, 1000),
    progress=st.sampled_from(["", "{samples}", "step:*{step*64}/1000", "wandb:%j{step*2}"]),
    restart_cost=st.integers(0, 1000).map(float),
    cost=st.sampled_from(["", "any"]),
    wait=st.none() | st.integers(0, 1000).map(float),
    pin=st.booleans(),
    constraint=st.text(max_size=40),
    partitions=st.lists(words, max_size=3).map(tuple),
    lease=st.booleans(),
)


@given(declarations, st.text(st.characters(exclude_characters="[]"), max_size=60))
def test_a_declaration_comes_back_from_a_comment(declared, text):
    comment = declaration.merge(text, declared)
    assert declaration.decode(comment) == declared
    assert comment.startswith(text)


def test_a_list_of_gpu_counts_is_no_range():
    listed = declaration.parse(["gpus=8,4,8"], "here")
    assert isinstance(listed.gpus, CountList) and listed.assignments()["gpus"] == "4,8"
    again = declaration.decode(declaration.encode(listed))
    assert again is not None and isinstance(again.gpus, CountList)
    for text in ("4-8", "4:8", "4,4"):
        assert not isinstance(declaration.parse([f"gpus={text}"], "here").gpus, CountList)


@given(declarations, declarations)
def test_merging_again_replaces_the_declaration_and_keeps_the_rest(first, second):
    comment = declaration.merge("note to self", first) + " other=tool"
    again = declaration.merge(comment, second)
    assert declaration.decode(again) == second
    assert again.startswith("note to self") and again.endswith(" other=tool")


@given(st.text(max_size=200))
def test_any_comment_is_read_or_refused_in_one_sentence(text):
    for comment in (text, f"[hadar1 {text}]"):
        try:
            declaration.decode(comment)
        except UsageError as error:
            assert "\n" not in str(error)


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_words_are_read_or_refused_in_one_sentence(typed):
    try:
        declaration.parse(typed, "line 3 of train.sh")
    except UsageError as error:
        assert str(error).startswith("line 3 of train.sh: ") and "\n" not in str(error)


def test_the_example_of_the_documentation():
    line = "model=resnet18 types=any gpus=1-4 batch=64:512 samples=5e6 checkpoint=yes"
    declared = declaration.parse(line.split(), "here")
    assert declared == Declaration(
        model="resnet18",
        types=("any",),
        gpus=(1, 4),
        batch=(64, 512),
        samples=5_000_000,
        checkpoint="yes",
    )
    assert declared.total_samples == 5_000_000
    assert replace(declared, samples=0, epochs=3, dataset_size=100).total_samples == 300


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("gpu=3", "did you mean gpus?"),
        ("tipes=any", "did you mean types?"),
        ("colour=red", "known keys: model"),
        ("bogus=3", "known keys: model"),
        ("gpus=1-", "'gpus=1-' is a range without its end; write 'gpus=1', or the end"),
        ("batch=64:", "a range without its end"),
        ("gpus=4-1", "smaller number first"),
        ("gpus=0", "range such as 1-4"),
        ("gpus=4,", "a list such as 4,8"),
        ("gpus=1-4,8", "a list such as 4,8"),
        ("gpus=" + ",".join(map(str, range(1, 18))), "at most 16"),
        ("samples=many", "such as 50000 or 5e6"),
        ("checkpoint=maybe", "signal, restart or watch:PATH"),
        ("checkpoint=watch:", "watch:PATH"),
        ("checkpoint=watch:a;b", "watch:PATH"),
        ("checkpoint=signal:x", "watch:PATH"),
        ("signal=KILL", "names: USR1"),
        ("signal=X:USR1", "B:NAME for the batch shell"),
        ("signal=USR1@0", "SECONDS"),
        ("signal=B:USR1@901", "at most 900"),
        ("checkpoint=watch:/a/*/ck-1.pt", "last part only"),
        ("checkpoint=watch:a?b/ck", "last part only"),
        ("checkpoint_exit_code=0", "from 1 to 125"),
        ("progress=step", "{step*64}"),
        ("progress={step}", "samples in one"),
        ("progress={samples}{samples}", "once"),
        ("progress={step*0}", "at most 200"),
        ("progress=(a+)+{samples}", "letters"),
        ("progress=tensorboard:runs/*{step*64}", "tensorboard:PATH with {step*64}"),
        ("progress=wandb:{samples}", "wandb:PATH"),
        ("progress=wandb:a{samples}b", "behind it"),
        ("checkpoint_exit_code=143", "from 1 to 125"),
        ("max_requeues=-1", "from 0 to 1000"),
        ("max_requeues=1001", "from 0 to 1000"),
        ("gpu_mem=24X", "such as 24G"),
        ("types=any,v100", "not both"),
        ("model=", "no value"),
        ("model", "no value"),
    ],
)
def test_nonsense_is_one_sentence_with_the_cure(word, says):
    with pytest.raises(UsageError, match="here: ") as caught:
        declaration.parse([word], "here")
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_nobody_declares_more_tasks_than_can_be_dealt():
    assert declaration.parse(["tasks=1000000"], "here").tasks == 1_000_000
    with pytest.raises(UsageError, match="tasks='1e18' is not understood"):
        declaration.parse(["tasks=1e18"], "here")
    with pytest.raises(UsageError):
        declaration.decode("[hadar1 tasks=1000001]")
