"""States of the generator that captured code sets, on a GPU: its generator is played here."""

from __future__ import annotations

import pytest
import torch

from cgtool.detectors import generator_states
from cgtool.detectors.generator_states import GeneratorStates
from cgtool.model.finding import NOTE
from cgtool.torch_compat.patches import Patches


class Philox:
    """The default generator, as ``CUDAGeneratorImpl.cpp`` has it in a capture: a seed that stays,
    and an offset within the graph."""

    def __init__(self):
        self.offset = 0

    def state(self, *_):
        return torch.tensor([7, 0, 0, 0, 0, 0, 0, 0, self.offset, 0, 0, 0, 0, 0, 0, 0])

    def restore(self, state, *_):
        self.offset = int(state[8])

    def draw(self):
        self.offset += 4


@pytest.fixture
def generator():
    philox = Philox()
    with Patches() as patches:
        patches.set(torch.cuda, "get_rng_state", philox.state)
        patches.set(torch.cuda, "set_rng_state", philox.restore)
        patches.set(torch.cuda, "initial_seed", lambda: 7)
        patches.set(torch.cuda, "manual_seed_all", lambda _seed: None)
        yield philox


def capture(generator, states, code):
    """The findings of a capture; its offset begins at 0."""
    generator.offset = 0
    states.begin()
    code()
    return list(states.end())


def reasons(findings):
    return ["every replay draws the same" in finding.reason for finding in findings]


def forked(draw):
    before = torch.cuda.get_rng_state(0)
    draw()
    torch.cuda.set_rng_state(before, 0)


def test_a_graph_that_takes_back_what_it_drew_repeats_its_numbers(generator):
    states = GeneratorStates(generator.state, relative=True)
    assert reasons(capture(generator, states, lambda: forked(generator.draw))) == [True]
    assert not capture(generator, states, lambda: forked(lambda: None))


def test_a_graph_that_also_draws_on_is_right(generator):
    states = GeneratorStates(generator.state, relative=True)

    def code():
        generator.draw()
        forked(generator.draw)

    assert not capture(generator, states, code)


@pytest.mark.parametrize("state", ["seed", "state"])
def test_what_eager_sets_before_each_call_is_not_set_by_a_replay(generator, state):
    states = GeneratorStates(generator.state, relative=True)
    outside = generator.state()

    def code():
        torch.cuda.manual_seed_all(7) if state == "seed" else torch.cuda.set_rng_state(outside)
        generator.draw()

    assert reasons(capture(generator, states, code)) == [False]
    # Another seed is refused by PyTorch, and reported by others.
    assert not capture(generator, states, lambda: (torch.cuda.manual_seed_all(8), code()))


@pytest.mark.parametrize("own_memory", [False, True])
def test_a_backward_of_its_own_that_recomputes_dropout(generator, own_memory, monkeypatch):
    monkeypatch.setattr(generator_states, "_has_memory_for_each_graph", lambda: own_memory)
    states = GeneratorStates(generator.state, relative=True)
    saved = []

    def forward():
        saved.append(torch.cuda.get_rng_state())
        generator.draw()

    def backward():
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(saved[0])
        generator.draw()
        torch.cuda.set_rng_state(before)

    assert not capture(generator, states, forward)
    (finding,) = capture(generator, states, backward)
    assert finding.severity == (None if own_memory else NOTE)

    def backward_that_draws():
        backward()
        generator.draw()

    (finding,) = capture(generator, states, backward_that_draws)
    assert finding.severity is None
