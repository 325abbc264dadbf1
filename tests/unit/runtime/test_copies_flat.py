"""A copy as one vector: nothing is lost, and an optimizer begins as it would."""

import copy
import sys
from types import ModuleType

import pytest
import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime.copies_flat import Flat, weighted


@pytest.fixture(autouse=True, scope="module")
def no_compiler():
    """A first optimizer imports PyTorch's compiler, two seconds of CPU time, and calls one function
    of it: ``disable``, which leaves what is never compiled as it is."""
    name = "torch._dynamo"
    stub = ModuleType(name)
    vars(stub).update(graph_break=lambda: None, disable=lambda function, *_, **__: function)
    with pytest.MonkeyPatch.context() as patch:
        if name not in sys.modules:
            patch.setitem(sys.modules, name, stub)
        yield


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
}


def build(kind):
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1)
    )
    return model, OPTIMIZERS[kind](model.parameters())


def steps(model, optimizer, number):
    generator = torch.Generator().manual_seed(number)
    for _ in range(number):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_begins_as_without_it(kind):
    one, first = build(kind)
    steps(one, first, 4)
    two, second = build(kind)
    before = copy.deepcopy(two.state_dict())
    Flat(two, second, with_state=True)
    assert all(torch.equal(before[key], value) for key, value in two.state_dict().items())
    steps(two, second, 4)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_vector_brings_another_copy_to_the_same_place(kind):
    one, first = build(kind)
    steps(one, first, 3)
    source = Flat(one, first, with_state=True)
    two, second = build(kind)
    target = Flat(two, second, with_state=True)
    assert source.vector.flags.c_contiguous and source.vector.shape == target.vector.shape
    target.vector[:] = source.pack()
    target.unpack()
    steps(one, first, 2)
    steps(two, second, 2)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one[1].running_mean, two[1].running_mean)


def test_an_optimizer_with_a_closure_is_refused():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(UsageError, match="LBFGS cannot be averaged"):
        Flat(model, torch.optim.LBFGS(model.parameters()), with_state=True)


def test_the_average_is_weighted():
    vectors = [torch.full((3,), float(value)).numpy() for value in (1, 10, 100)]
    spare = vectors[0].copy()
    weighted(vectors, [0.5, 0.3, 0.2], vectors[0], spare)
    assert vectors[0].tolist() == pytest.approx([23.5] * 3)
    assert vectors[1].tolist() == [10.0] * 3


def test_double_precision_is_kept():
    model = torch.nn.Linear(2, 1).double()
    flat = Flat(model, torch.optim.SGD(model.parameters(), lr=0.1), with_state=True)
    with torch.no_grad():
        model.weight.fill_(1 + 2**-40)
    assert flat.pack()[0] == 1 + 2**-40
