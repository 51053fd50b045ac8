"""New inputs have the properties of the user's, and are other ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cgtool.jobs.verify.fresh_inputs import fresh, reordered

INF = float("inf")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape):
    return torch.rand(*shape, generator=generator(3))


def tokens(*shape, of=100):
    return torch.randint(of, shape, generator=generator(4))


def covariance():
    rows = random(6, 8) - 0.5
    return rows @ rows.T + torch.eye(6)


def sums_to_one(x):
    return bool(((x.double().sum(-1) - 1).abs() < 1e-5).all())


def rows_of_one_hot(x):
    return bool(((x == 0) | (x == 1)).all()) and bool((x.sum(-1) == 1).all())


def is_sorted(x):
    return bool((x.diff() >= 0).all())


def length_of_one(x):
    return bool(((x.norm(dim=-1) - 1).abs() < 1e-5).all())


VALID = {
    "probabilities for BCELoss": (random(8, 4), lambda x: bool(((x > 0) & (x < 1)).all())),
    "numbers above 1, for acosh": (1 + random(8), lambda x: bool((x >= 1).all())),
    "negative numbers": (-random(8) - 0.1, lambda x: bool((x < 0).all())),
    "a distribution": (random(9).softmax(0), sums_to_one),
    "distributions": (random(5, 9).softmax(-1), sums_to_one),
    "distributions in bfloat16": (
        random(5, 9).softmax(-1).bfloat16(),
        lambda x: bool(((x.float().sum(-1) - 1).abs() < 0.05).all()),
    ),
    "one-hot floats": (torch.eye(7)[tokens(12, of=7)], rows_of_one_hot),
    "one-hot integers": (torch.eye(7)[tokens(12, of=7)].long(), rows_of_one_hot),
    "labels of -1 and 1": (
        torch.tensor([1.0, -1.0] * 4), lambda x: set(x.tolist()) == {1.0, -1.0}
    ),
    "offsets": (
        torch.tensor([0, 2, 5, 9, 10, 17]),
        lambda x: is_sorted(x) and (x[0], x[-1]) == (0, 17) and len(set(x.tolist())) == 6,
    ),
    "offsets of a batch": (
        torch.tensor([[0, 3, 4, 9], [0, 1, 7, 9]]),
        lambda x: is_sorted(x) and (x[:, 0] == 0).all() and (x[:, -1] == 9).all(),
    ),
    "graph of each node": (
        torch.tensor([0, 0, 0, 1, 1, 2, 3, 3]),
        lambda x: is_sorted(x) and set(x.tolist()) == {0, 1, 2, 3},
    ),
    "edges of bins": (random(9).cumsum(0), lambda x: bool((x.diff() > 0).all())),
    "a covariance": (
        covariance(), lambda x: torch.equal(x, x.T) and bool((torch.linalg.eigvalsh(x) > 0).all())
    ),
    "a batch of covariances": (
        torch.stack([covariance(), 2 * covariance(), covariance() + 0.3]),
        lambda x: torch.equal(x, x.mT) and bool((torch.linalg.eigvalsh(x) > 0).all()),
    ),
    "a Cholesky factor": (
        torch.linalg.cholesky(covariance()),
        lambda x: not x.triu(1).any() and bool((x.diagonal() > 0).all()),
    ),
    "a matrix to invert": (
        random(6, 6) - 0.5, lambda x: float(torch.linalg.svdvals(x)[-1]) > 1e-4
    ),
    "unit vectors": (torch.nn.functional.normalize(random(6, 4) - 0.5, dim=-1), length_of_one),
    "boxes": (
        torch.cat((random(9, 2), 1 + random(9, 2)), 1),
        lambda x: bool((x[:, :2] < x[:, 2:]).all()),
    ),
    "a padding mask": (
        torch.arange(6) < torch.tensor([[2], [6], [4], [1]]), lambda x: bool(x.any(-1).all())
    ),
    "a mask of infinities": (
        torch.where(torch.ones(5, 5).tril() > 0, random(5, 5), -INF),
        lambda x: torch.equal(x == -INF, torch.ones(5, 5).tril() == 0),
    ),
    "tokens": (tokens(2, 16), lambda x: bool(((x >= 0) & (x < 100)).all())),
    "edges between two kinds of nodes": (
        torch.stack((tokens(40, of=50), tokens(40, of=5))),
        lambda x: bool((x[0] < 50).all()) and bool((x[1] < 5).all()),
    ),
    "columns of categories": (
        torch.stack([tokens(32, of=size) for size in (1000, 4, 40)], 1),
        lambda x: bool((x.amax(0) < torch.tensor([1000, 4, 40])).all()),
    ),
    "a permutation": (
        torch.randperm(9, generator=generator()), lambda x: sorted(x.tolist()) == list(range(9))
    ),
    "a permutation of each row": (
        torch.rand(4, 9, generator=generator()).argsort(-1),
        lambda x: bool((x.sort(-1).values == torch.arange(9)).all()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALID)
def test_what_holds_of_inputs_holds_of_new_ones(kind):
    values, is_valid = VALID[kind]
    assert is_valid(values)
    for seed in range(5):
        new = fresh(values, generator(seed))
        assert (new.dtype, new.shape) == (values.dtype, values.shape)
        assert not torch.equal(new, values)
        assert is_valid(new), new


@pytest.mark.parametrize(
    "values",
    [
        random(4, 8) - 0.5, torch.ones(4), torch.ones(4, 4), torch.zeros(4), torch.tensor(2.0),
        torch.linspace(-1, 2, 16).reshape(4, 4), torch.arange(16.0), random(4, 3, 8, 8),
        torch.randn(4, 4, dtype=torch.complex64), random(1, 5),
    ],
)  # fmt: skip
def test_plain_numbers_change_their_sum(values):
    """A loss that is a mean would not show that a replay still has the captured inputs."""
    new = fresh(values, generator())
    assert abs(complex(new.sum() - values.sum())) > 1e-3


@given(st.lists(st.integers(-100, 100), min_size=3, max_size=30))
def test_integers_keep_their_range_and_order(values):
    tensor = torch.tensor(values)
    new = fresh(tensor, generator())
    if new is None:
        return
    assert min(values) <= new.min() and new.max() <= max(values)
    if values == sorted(values):
        assert new.tolist() == sorted(new.tolist())
        assert (new[0], new[-1]) == (tensor[0], tensor[-1])
    else:
        assert values == sorted(values, reverse=True) or sorted(new.tolist()) == sorted(values)
    if len(set(values)) == len(values):
        assert len(set(new.tolist())) == len(values)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_floats_keep_range_and_sign(values):
    tensor = torch.tensor(values)
    new = fresh(tensor, generator())
    if new is None:
        return
    assert new.dtype == tensor.dtype and new.shape == tensor.shape
    if any(values):
        assert new.abs().max() <= tensor.abs().max()
        assert min(values) < 0 or bool((new >= 0).all())


@pytest.mark.parametrize(
    "values", [torch.arange(5), torch.tensor(3), torch.full((2, 4), 0.25), torch.eye(4)]
)
def test_what_says_too_little_is_left_as_it_is(values):
    assert fresh(values, generator()) is None


def test_samples_in_another_order_are_the_same_samples():
    images, labels, weights = random(6, 3), tokens(6), random(4, 4)
    new_images, new_labels, none = reordered([images, labels, weights], generator())
    assert none is None

    def pairs(rows, names):
        return {(*row, name) for row, name in zip(rows.tolist(), names.tolist(), strict=True)}

    assert pairs(new_images, new_labels) == pairs(images, labels)
    assert not torch.equal(new_images, images)


ENTRY = """
import torch

def build(device):
    def run(x, y):
        if {refuses}:
            raise ValueError("not these")
        return x.sqrt() * y

    x = torch.rand(6, 4, device=device)
    build.x = x.clone()
    return run, (x, x.sum(-1, keepdim=True))
"""


@pytest.mark.parametrize(
    ("refuses", "notes", "looked_at"),
    [
        ("False", 0, "2 sets of new inputs back to back for 2 tensors"),
        # The second input is computed from the first: only whole samples are right.
        (
            "((x.sum(-1, keepdim=True) - y).abs() > 1e-5).any()",
            1,
            "2 sets of the same samples in another order back to back for 2 tensors",
        ),
        ("torch.equal(x, build.x) is False", 2, None),
    ],
)
def test_eager_says_which_inputs_are_valid(verified, tmp_path, refuses, notes, looked_at):
    file = tmp_path / "entry.py"
    text = ENTRY.format(refuses=f"not torch.cuda.is_current_stream_capturing() and {refuses}")
    file.write_text(
        text.replace("    return run, (x,", "    build.x = x.clone()\n    return run, (x,")
    )
    outcome = verified(f"{file}:build")
    texts = [note.text for note in outcome.notes if note.code == "refused-values"]
    assert len(texts) == notes and all("not these" in text for text in texts)
    assert outcome.comparisons and all(each.equal for each in outcome.comparisons)
    assert (
        (looked_at in outcome.looked_at) if looked_at else "fresh" not in str(outcome.comparisons)
    )


@pytest.mark.parametrize(
    ("factor", "looked_at"),
    [
        ("2", "2 sets of new inputs back to back for 1 tensor"),
        ("weight", "1 parameter changed in place"),
    ],
)
def test_one_tensor_is_no_tensors(verified, tmp_path, factor, looked_at):
    file = tmp_path / "entry.py"
    file.write_text(
        "import torch\n\ndef build(device):\n"
        "    weight = torch.rand(4, device=device).requires_grad_()\n"
        f"    return lambda x: x * {factor}, (torch.rand(4, device=device),)\n"
    )
    assert looked_at in verified(f"{file}:build").looked_at


def test_bceloss_takes_the_new_inputs(verified, tmp_path):
    file = tmp_path / "entry.py"
    file.write_text(
        "import torch\n\ndef build(device):\n"
        "    bias = (1 - 1e-4 * torch.rand(4, device=device)).requires_grad_()\n"
        "    def run(x, y):\n"
        "        return torch.nn.functional.binary_cross_entropy(x * bias, y)\n"
        "    x = 1 - 1e-4 * torch.rand(8, 4, device=device)\n"
        "    return run, (x, (x > 0.99995).float())\n"
    )
    outcome = verified(f"{file}:build")
    assert {each.trial for each in outcome.comparisons} >= {
        "fresh inputs, replay 2", "changed parameters",
    }  # fmt: skip
    assert not [note for note in outcome.notes if note.code == "refused-values"]
