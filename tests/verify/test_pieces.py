"""State that is set back, and tolerances."""

from __future__ import annotations

import math
import random
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from cgtool.jobs.verify import randomness
from cgtool.jobs.verify.differences import difference, nearest, spread
from cgtool.jobs.verify.evidence import EagerFacts, Evidence, Iteration, Run, Trial
from cgtool.jobs.verify.judge import judge
from cgtool.jobs.verify.procedure import verify
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot, state_of
from cgtool.jobs.verify.uninitialized import reads_uninitialized
from cgtool.model.options import VerifyOptions
from cgtool.observe.raw_tensors import same_bits, write
from cgtool.program.workload import Workload, WorkloadPart

FOLDER = Path(__file__).parent
NAN, INF = float("nan"), float("inf")


class Source:
    def get_rng_state(self):
        return [torch.get_rng_state()]

    def set_rng_state(self, states):
        torch.set_rng_state(states[0])


def workload(function, *args):
    return Workload("test", "callable", (WorkloadPart("test", function, args),))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.calls, self.seen, self.table = 0, [], {"lr": 0.1}
        self.cache = torch.zeros(2)


def test_everything_that_a_call_changes_is_set_back():
    model, generator = Model(), random.Random(4)
    stored = {"draws": generator}

    def change(x):
        nonlocal stored
        model.calls += 1
        model.seen.append(x * 2)
        model.table["lr"] *= 0.5
        model.mean.add_(1)
        model.mean = model.mean + 1
        model.weight.data = model.weight.data * 3
        model.weight.grad = torch.ones(2)
        model.cache.add_(torch.randn(2))
        model.new = x
        stored = {"draws": generator, "more": generator.random()}
        change.last = random.random()

    x = torch.ones(2)
    start = Snapshot(workload(change, x), Source())
    mean, address = model.mean, model.weight.data_ptr()
    before = random.getstate(), torch.get_rng_state(), generator.getstate()
    change(x)
    change(x)
    start.restore()
    assert (model.calls, model.seen, model.table) == (0, [], {"lr": 0.1})
    assert model.mean is mean and model.mean.tolist() == [0, 0]
    assert model.weight.data_ptr() == address and model.weight.tolist() == [1, 1]
    assert model.weight.grad is None and model.cache.tolist() == [0, 0]
    assert not hasattr(model, "new") and not hasattr(change, "last")
    assert list(stored) == ["draws"]
    after = random.getstate(), torch.get_rng_state(), generator.getstate()
    assert before[0] == after[0] and torch.equal(before[1], after[1]) and before[2] == after[2]


def test_what_a_function_keeps_in_another_module_is_set_back():
    settings = types.ModuleType("settings")
    settings.__file__, settings.calls, settings.rate = "settings.py", 0, 0.1
    names = {"settings": settings}
    source = "def count():\n    settings.calls += 1\n    settings.rate = 0.2\n"
    exec(compile(source, str(FOLDER / "count.py"), "exec"), names)
    start = Snapshot(workload(names["count"]), Source())
    names["count"]()
    start.restore()
    assert (settings.calls, settings.rate) == (0, 0.1)


@pytest.mark.parametrize(
    ("source", "draw"),
    [
        (torch.Generator(), lambda source: torch.rand(2, generator=source).tolist()),
        (random.Random(4), random.Random.random),
        (np.random.RandomState(4), np.random.RandomState.random_sample),
        (np.random.default_rng(4), np.random.Generator.random),
        (np.random.PCG64(4), np.random.PCG64.random_raw),
    ],
)
def test_sources_of_random_numbers_are_set_back(source, draw):
    start = Snapshot(workload(lambda: draw(source)), Source())
    first = draw(source)
    assert draw(source) != first
    start.restore()
    assert draw(source) == first


@pytest.mark.parametrize("source", [random.SystemRandom(), np.random.SeedSequence(4)])
def test_sources_that_cannot_be_set_back_are_left(source):
    Snapshot(workload(lambda: source), Source()).restore()


class Slotted:
    __slots__ = ("__calls", "seen")

    def __init__(self):
        self.__calls = 0

    def __call__(self, x):
        self.__calls += 1
        self.seen = x
        return self.__calls


def test_slots_are_set_back():
    slotted = Slotted()
    start = Snapshot(workload(slotted, torch.ones(2)), Source())
    assert slotted(1) == 1
    start.restore()
    assert not hasattr(slotted, "seen")
    assert slotted(1) == 1


def test_state_has_the_names_of_the_user():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(net.parameters())
    extra = torch.zeros(1)

    def step():
        optimizer.zero_grad(set_to_none=False)
        (net(torch.randn(4, 2)).sum() + extra).backward()
        optimizer.step()

    step()
    part = WorkloadPart("test", step, modules={"net": net})
    names = set(state_of(Workload("test", "step", (part,))))
    assert {"net.1.running_mean", "extra", "optimizer exp_avg of net.0.weight"} <= names
    assert "gradient of net.0.bias" in names


@pytest.mark.parametrize(
    ("first", "second", "largest", "exact"),
    [
        ([1.0, NAN], [1.0, NAN], 0.0, True),
        ([1.0, INF], [1.0, INF], 0.0, True),
        ([0.0, 1.0], [-0.0, 1.0], 0.0, False),
        ([1.0, 2.0], [1.0, 2.5], 0.5, False),
        ([1.0, NAN], [1.0, 2.0], None, False),
        ([1.0, INF], [1.0, -INF], None, False),
        ([1.0, INF], [1.0, 1.0], None, False),
        ([], [], 0.0, True),
    ],
)
def test_differences(first, second, largest, exact):
    measured = difference(torch.tensor(first), torch.tensor(second))
    assert (measured.largest, measured.exact) == (largest, exact)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int64, torch.uint64, torch.bfloat16, torch.float16,
        torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    ],
)  # fmt: skip
def test_every_kind_of_number_can_be_compared(dtype):
    first, second = torch.tensor([1, 0]).to(dtype), torch.tensor([1, 1]).to(dtype)
    assert difference(first, first.clone()).exact
    assert difference(first, second) == (1, False)
    assert difference(first.expand(3, 2), first.expand(3, 2).contiguous()).exact


@pytest.mark.parametrize(
    ("dtype", "left", "right"),
    [
        (torch.int64, 2**60, 2**60 + 1),
        (torch.int64, -(2**63), 2**63 - 1),
        (torch.uint64, 2**64 - 1, 2**64 - 2),
        (torch.uint64, 0, 2**64 - 1),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.uint8, 0, 255),
    ],
)
def test_integers_are_compared_as_integers(dtype, left, right):
    measured = difference(
        torch.tensor([3, left], dtype=dtype), torch.tensor([3, right], dtype=dtype)
    )
    assert measured == (abs(left - right), False)
    assert type(measured.largest) is int


def test_bytes_that_are_no_numbers_are_compared():
    left, right = (torch.tensor([1, value], dtype=torch.uint8) for value in (2, 3))
    for dtype in (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2):
        assert difference(left.view(dtype), left.clone().view(dtype)).exact
        assert not difference(left.view(dtype), right.view(dtype)).exact


def test_quantized_numbers_are_compared_with_their_scales():
    values = torch.tensor([0.0, 1.0, 2.0])
    first, second = (torch.quantize_per_tensor(values * by, by, 0, torch.qint8) for by in (1, 2))
    assert torch.equal(first.int_repr(), second.int_repr())
    assert difference(first, first.clone()).exact
    assert difference(first, second) == (2, False)


def test_sparse_tensors_and_shapes():
    sparse = torch.eye(3).to_sparse()
    assert difference(sparse, sparse.clone()).exact
    assert difference(torch.zeros(2), torch.zeros(3)).largest is None


def test_noise_is_the_spread_of_the_runs_and_a_replay_is_compared_with_the_nearest():
    runs = [torch.tensor([1.0]), torch.tensor([1.25]), torch.tensor([1.5])]
    assert spread(runs).largest == 0.5
    assert nearest(runs, torch.tensor([1.3])).largest == pytest.approx(0.05)
    assert nearest(runs, torch.tensor([1.25])).exact


BIAS, WEIGHT = ("gradient", "gradient of bias"), ("gradient", "gradient of weight")


def one_iteration(values, start=()):
    before = {("state", f"tensor {number}"): tensor for number, tensor in enumerate(start)}
    return Run((Iteration(before, {**before, **values}),))


def verdict_on(replay, eager, exact=None, start=(), random=()):
    """What ``judge`` says of the gradient of the bias."""
    runs = tuple(one_iteration(values, start) for values in eager)
    float64 = None if exact is None else one_iteration(exact)
    facts = EagerFacts(random=frozenset(random))
    evidence = Evidence(
        Trial("one"), runs, one_iteration(replay, start), facts, exact is not None, float64
    )
    (compared,) = (each for each in judge(evidence).compared if each.comparison.name == BIAS[1])
    return compared


def test_noise_counts_in_units_of_all_gradients():
    runs = [{BIAS: torch.tensor([1e-9])}, {BIAS: torch.tensor([-1e-9])}]
    with_weight = [{**values, WEIGHT: torch.ones(1)} for values in runs]

    def too_noisy(eager, *start):
        compared = verdict_on({**eager[0], BIAS: torch.tensor([5e-10])}, eager, start=start)
        assert compared.comparison.equal
        return compared.too_noisy

    assert not too_noisy(with_weight)
    assert too_noisy(runs)
    # The rounding of the numbers that it was computed from.
    assert not too_noisy(runs, torch.ones(3))


def test_gradients_that_are_not_compared_are_the_scale_of_the_others():
    """The bias of the keys does not change a softmax: its gradient is rounding of the others."""
    eager = {BIAS: torch.tensor([3e-9, -2e-9]), WEIGHT: torch.tensor([0.5, -0.25])}
    replay = {BIAS: eager[BIAS] * -1.5, WEIGHT: eager[WEIGHT].flip(0)}
    exact = {BIAS: eager[BIAS].double() * 1e-9, WEIGHT: eager[WEIGHT].double()}
    compared = verdict_on(replay, [eager], exact, random={WEIGHT})
    assert compared.comparison.equal
    assert not compared.too_noisy


@pytest.mark.parametrize(
    ("replayed", "verdict"), [(0.0, "cannot tell"), (1e-3 * (1 + 1e-6), "equal"), (1.0, "differs")]
)
def test_a_float64_run_that_eager_is_far_from_does_not_judge(replayed, verdict):
    """It missed a kernel that wrote the gradient of a small bias."""
    eager = {BIAS: torch.full((4,), 1e-3), WEIGHT: torch.full((4,), 10.0)}
    exact = {BIAS: torch.full((4,), 2e-3).double(), WEIGHT: torch.full((4,), 10.0).double()}
    compared = verdict_on({**eager, BIAS: torch.full((4,), replayed)}, [eager], exact)
    equal = "cannot tell" if compared.too_noisy else "equal"
    assert (equal if compared.comparison.equal else "differs") == verdict


def test_what_shares_memory_is_written_once():
    tensor = torch.arange(3.0).reshape(1, 3).expand(4, 3)
    write(tensor, torch.full((4, 3), 7.0))
    assert tensor.tolist() == [[7.0] * 3] * 4


def staged(target):
    start = Snapshot(target.workload, target.device)
    target.session.warm_up(lambda _text: None)
    target.capture(lambda _text: None)
    return TrialRunner(target, start)


def test_random_results_are_compared_by_what_they_are_drawn_from(target):
    subject = target("innocent.py:dropout_and_batch_norm")
    stage = staged(subject)
    trial = Trial("one")
    keys = {("gradient", "gradient of 0.weight")}
    assert randomness.alike(stage, trial, keys)
    assert list(randomness.frozen(stage, trial)) == []


@pytest.mark.parametrize(
    "shift, seeds",
    [
        pytest.param(lambda seed: 0.0, 12, id="equal"),
        pytest.param(lambda seed: 1e-9, 12, id="rounding"),
        pytest.param(lambda seed: 0.05 if seed < 12 else -0.01, 48, id="by chance"),
        pytest.param(lambda seed: 0.05, 0, id="another distribution"),
    ],
)
def test_means_that_are_apart_by_chance_are_looked_at_again(monkeypatch, shift, seeds):
    """Around zero: the mean of eager is rounding alone, with a magnitude of one."""

    def draws(runner, trial, some, *, replayed=False):
        for seed in some:
            noise = 0.01 * random.Random(2 * seed + replayed).gauss(0, 1)
            center = shift(seed) if replayed else 0.0
            if shift(0) == 1e-9:
                noise *= 1e-9
            yield {("output", "output"): torch.tensor([-1.0, 1.0]).double() + noise + center}

    monkeypatch.setattr(randomness, "_draws", draws)
    assert randomness.alike(None, Trial("one"), {("output", "output")}) == seeds


def test_a_replay_that_repeats_its_random_numbers_is_found(target, monkeypatch):
    subject = target("innocent.py:dropout_and_batch_norm")
    stage = staged(subject)
    kept = torch.get_rng_state()
    replay = stage.replay_once

    def frozen(trial):
        torch.set_rng_state(kept)
        replay(trial)

    monkeypatch.setattr(stage, "replay_once", frozen)
    (finding,) = randomness.frozen(stage, Trial("one"))
    assert finding.code == "rng-frozen-seed"
    assert not randomness.alike(stage, Trial("one"), {("output", "output")})


def test_what_a_replay_does_not_write_keeps_the_sentinel(target, monkeypatch):
    subject = target("innocent.py:two_callables")
    stage = staged(subject)
    skipped = subject.session.graphs[-1].graph
    monkeypatch.setattr(type(skipped), "replay", lambda self: None)
    run = stage.replay(Trial("one"))
    assert ("output", "first: output") in run.unwritten


def test_incoming_gradients_are_inputs(target):
    subject = target("innocent.py:two_callables")
    names = [name for name, _ in staged(subject).inputs]
    assert "second: incoming gradient of output" in names


def test_relative_differences_of_nothing():
    assert math.isclose(
        difference(torch.tensor([1e-30]), torch.tensor([0.0])).largest, 1e-30, rel_tol=1e-6
    )


def after_replay(graph, action):
    replay = graph.replay

    def replay_and_more():
        replay()
        with torch.inference_mode():
            action()

    graph.replay = replay_and_more


def as_on_a_gpu(target, changed):
    """Kernels may differ, memory is shared; ``changed`` gets the graphs once they are captured."""
    target.has_kernels = True
    capture = target.capture

    def captured(progress):
        capture(progress)
        changed(target.session)

    target.capture = captured
    return target


@pytest.mark.parametrize(("scale", "equal"), [(1 + 2**-22, True), (1.01, False)])
def test_where_kernels_may_differ_rounding_is_allowed_and_no_more(target, scale, equal):
    def round_otherwise(session):
        output = session.outputs[0][0][1]
        after_replay(session.graphs[0].graph, lambda: output.mul_(scale))

    subject = as_on_a_gpu(target("innocent.py:matrix_products"), round_otherwise)
    outcome = verify(subject, VerifyOptions(), lambda _text: None)
    outputs = [comparison for comparison in outcome.comparisons if comparison.kind == "output"]
    assert {output.equal for output in outputs} == {equal}
    assert not any(output.exact for output in outputs)
    assert all(output.tolerance > 0 for output in outputs)


@pytest.mark.parametrize("overwrites", [True, False])
def test_results_that_nobody_writes_are_not_compared(target, monkeypatch, overwrites):
    def leave(session):
        result, replay = session.outputs[0][1][1], session.graphs[0].graph.replay

        def without_result():
            kept = result.clone()
            replay()
            result.copy_(kept)

        session.graphs[0].graph.replay = without_result

    subject = as_on_a_gpu(target("scratch.py:scratch"), leave)
    free = subject.workload.parts[0].function.__globals__["FREE"]
    free.copy_(torch.arange(3))

    def overwrite(byte=0xFF):
        if overwrites:
            free.view(torch.uint8).fill_(byte)

    monkeypatch.setattr(subject.device, "overwrite_free_memory", overwrite)
    outcome = verify(subject, VerifyOptions(), lambda _text: None)
    codes = [finding.code for finding in outcome.findings]
    assert ("capture-does-not-execute" in codes) is not overwrites
    compared = {each.name for each in outcome.comparisons if each.kind == "output"}
    assert compared == {"output[0]"} if overwrites else {"output[0]", "output[1]"}
    texts = " ".join(note.text for note in outcome.notes)
    assert ("neither eager code nor a replay writes this memory" in texts) is overwrites


def test_noise_is_not_taken_for_uninitialized_memory(target):
    """Two runs of the sum are equal in one of seven cases: forty looks would find one so."""
    subject = target("innocent.py:sums_as_atomics_do_beside_empty")
    subject.session.warm_up(lambda _text: None)
    start = Snapshot(subject.workload, subject.device)
    subject.capture(lambda _text: None)
    runner = TrialRunner(subject, start)
    found = [reads_uninitialized(runner, Trial("captured inputs")) for _ in range(40)]
    assert not any(found)


def test_noise_of_eager_is_a_note_with_the_op_that_makes_it(target):
    subject = target("innocent.py:sums_as_atomics_do")
    outcome = verify(subject, VerifyOptions(), lambda _text: None)
    assert all(comparison.equal for comparison in outcome.comparisons)
    assert any(comparison.noise > 0 for comparison in outcome.comparisons)
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("eager-vs-graph-numeric-noise", "note")
    line = next(
        number
        for number, text in enumerate((FOLDER / "innocent.py").read_text().splitlines(), 1)
        if "atomic_sum(x)" in text
    )
    assert finding.frames[0].line == line


def test_another_order_of_replay_that_is_right_is_not_a_finding(target):
    subject = as_on_a_gpu(target("innocent.py:two_callables"), lambda _session: None)
    assert verify(subject, VerifyOptions(), lambda _text: None).findings == ()


def test_another_order_of_replay_that_is_wrong_is_a_note(target):
    order = [""]

    def overlay(session):
        """The first forward's memory lies on the gradients that the graph before it left."""
        gradients = [gradient for gradient in session.gradients[0] if gradient is not None]
        for captured in session.graphs:

            def act(name=captured.name):
                order.append(name)
                if order[-2:] == ["backward 0", "forward 1"]:
                    torch._foreach_zero_(gradients)

            after_replay(captured.graph, act)

    subject = as_on_a_gpu(target("innocent.py:two_callables"), overlay)
    (finding,) = verify(subject, VerifyOptions(), lambda _text: None).findings
    assert (finding.code, finding.severity) == ("shared-pool-replay-order", "note")


def test_a_replay_that_fails_ends_the_trials_with_what_is_known(target):
    subject = target("innocent.py:matrix_products")

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    capture = subject.capture

    def captured(progress):
        capture(progress)
        subject.session.graphs[0].graph.replay = lost

    subject.capture = captured
    outcome = verify(subject, VerifyOptions(), lambda _text: None)
    assert [finding.code for finding in outcome.findings] == ["input-freed-before-replay"]
    assert "illegal memory access" in outcome.notes[-1].text


@pytest.mark.parametrize(
    ("capturing", "stream", "nodes", "sure", "codes"),
    [
        (False, 7, 1, True, ["side-stream-not-forked"]),
        (False, 0, 1, True, ["kernel-on-stream-zero"]),
        (True, 7, 0, False, ["kernel-on-stream-zero"]),
        (True, 7, 1, False, []),
        (True, 7, 0, True, []),
    ],
)
def test_launches_without_a_node(capturing, stream, nodes, sure, codes):
    missed = pytest.importorskip("cgtool.devices.cuda.verify")
    recorder = missed.MissedRecorder({}, None, 1)
    recorder.missed = [missed.Missed(None, None, 2, nodes, stream, capturing)]
    assert [finding.code for finding in missed.findings_of(recorder, certain_only=sure)] == codes


class Quantized(torch.Tensor):
    """A weight as libraries write them: a wrapper subclass around the tensor that has memory."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Quantized(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, Quantized) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


def test_a_wrapped_weight_is_set_back_through_the_tensor_inside():
    inner = torch.ones(2)
    wrapped = Quantized(inner)
    holder = {"weight": wrapped}

    def change(x):
        holder["weight"].inner.add_(1)
        return x

    snapshot = Snapshot(workload(change, torch.zeros(1)), Source())
    change(None)
    snapshot.restore()
    assert holder["weight"] is wrapped
    assert torch.equal(inner, torch.ones(2))


def test_one_element_of_any_stride_has_bits_to_compare():
    one, same = (torch.ones(4, 4).as_strided((1, 1), (6, 6)) for _ in range(2))
    assert same_bits(one, same) and not same_bits(one, -same)
