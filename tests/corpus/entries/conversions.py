"""Tensors that become Python values unseen, and host work that does not matter."""

import math

import torch
from torch import nn
from torch.nn import functional


def membership_test(device):
    def reward(tokens):
        bonus = 1.0 if 7 in tokens else 0.0  # guilty: `in` compares on the host
        return functional.one_hot(tokens, 16).float().mean(0) + bonus

    return reward, (torch.arange(16, device=device),)


def membership_by_isin(device):
    def reward(tokens):
        bonus = torch.isin(tokens, 7).any()
        return (tokens[:, None] == tokens).float().mean(0) + bonus

    return reward, (torch.arange(16, device=device),)


def loops_over_indices(device):
    def rows(x, order):
        out = []
        for i in order:
            out.append(x[i] * 2)  # guilty: each index is read on the host
        return torch.stack(out)

    return rows, (torch.randn(4, 8, device=device), torch.tensor([2, 0, 3], device=device))


def loops_over_rows(device):
    def rows(x):
        out = []
        for row in x:
            out.append(row.softmax(-1) * len(out))
        return torch.stack(out)

    return rows, (torch.randn(4, 8, device=device),)


def range_of_a_count(device):
    def powers(x, n):
        y = x
        for _ in range(n):  # guilty: the number of rounds is read on the host
            y = torch.tanh(y + x)
        return y

    return powers, (torch.randn(4, device=device), torch.tensor(3, device=device))


def arange_of_a_tensor(device):
    def positions(lengths):
        return torch.arange(lengths.max(), device=device)  # guilty: its length is read

    return positions, (torch.tensor([3, 5, 2], device=device),)


def arange_like_a_shape(device):
    def positions(x):
        return torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1) + x

    return positions, (torch.randn(2, 5, device=device),)


def full_of_a_tensor(device):
    def pad(x):
        return torch.full((4, 2), x.amin(), device=device)  # guilty: the value is read

    return pad, (torch.randn(4, 8, device=device),)


def expanded_minimum(device):
    def pad(x):
        return torch.cat([x, x.amin().expand(4, 2)], 1)

    return pad, (torch.randn(4, 8, device=device),)


def clamp_by_tensors(device):
    def bound(x):
        return x.clamp(x.mean() - x.std(), x.mean() + x.std())

    return bound, (torch.randn(4, 8, device=device),)


def clamp_by_numbers_of_tensors(device):
    def bound(x):
        low, high = (x.mean() - x.std()).item(), float(x.mean() + x.std())  # guilty: both are read
        return x.clamp(low, high)

    return bound, (torch.randn(4, 8, device=device),)


def math_of_a_tensor(device):
    def scale(x):
        return x / math.sqrt(x.square().sum())  # guilty: math needs a Python number

    return scale, (torch.randn(4, 8, device=device),)


def math_of_a_shape(device):
    def scale(x):
        return x / math.sqrt(x.shape[-1]) * math.log(x.numel())

    return scale, (torch.randn(4, 8, device=device),)


def maximum_by_python(device):
    def best(a, b):
        return max(a.sum(), b.sum())  # guilty: compares on the host

    return best, (torch.randn(4, device=device), torch.randn(4, device=device))


def maximum_of_sizes(device):
    def pad(a, b):
        width = max(a.shape[0], b.shape[0])
        return functional.pad(a, (0, width - len(a))) + functional.pad(b, (0, width - len(b)))

    return pad, (torch.randn(4, device=device), torch.randn(6, device=device))


def sum_by_python(device):
    def total(parts):
        return sum(part.mean() for part in parts) / len(parts)

    return total, ([torch.randn(4, device=device) for _ in range(3)],)


def power_of_a_host_tensor(device):
    betas = torch.tensor([0.9, 0.999])

    def correct(x):
        first, second = betas.tolist()
        return x / (1 - first) / math.sqrt(1 - second)

    return correct, (torch.randn(4, device=device),)


def chained_comparison(device):
    def inside(x):
        mean = x.mean()
        if 0 < mean < 1:  # guilty: a chain of comparisons is a branch
            return x
        return x - mean

    return inside, (torch.randn(4, device=device),)


def and_of_masks(device):
    def inside(x):
        return torch.logical_and(x > 0, x < 1).float() + ((x > 2) | (x < -2)).float()

    return inside, (torch.randn(4, device=device),)


def and_by_keyword(device):
    def inside(x):
        ok = (x > 0).any() and (x < 1).any()  # guilty: `and` asks for a Python bool
        return x * ok

    return inside, (torch.randn(4, device=device),)


def not_of_a_flag(device):
    def choose(x, flag):
        return x if not flag else -x  # guilty: `not` asks for a Python bool

    return choose, (torch.randn(4, device=device), torch.tensor(True, device=device))


def where_of_a_flag(device):
    def choose(x, flag):
        return torch.where(flag, -x, x) * ~flag

    return choose, (torch.randn(4, device=device), torch.tensor(False, device=device))


def where_with_one_argument(device):
    def active(x):
        return x[torch.where(x > 0)].sum()  # guilty: where() with one argument is nonzero()

    return active, (torch.randn(4, 8, device=device),)


def index_put_of_a_mask(device):
    def damp(x):
        y = x.clone()
        y[y > 1] *= 0.5  # guilty: reads and writes by a mask
        return y

    return damp, (torch.randn(4, 8, device=device),)


def asserts_on_the_device(device):
    def normalise(x):
        torch._assert_async((x >= 0).all())
        return x / x.sum(-1, keepdim=True)

    return normalise, (torch.rand(4, 8, device=device),)


def asserts_closeness(device):
    def normalise(x):
        p = x.softmax(-1)
        torch.testing.assert_close(p.sum(-1), torch.ones(4, device=device))  # guilty: on the host
        return p

    return normalise, (torch.rand(4, 8, device=device),)


def nan_check_in_eval(device):
    model = nn.Linear(8, 8, device=device).eval()

    @torch.inference_mode()
    def infer(x):
        y = model(x)
        if y.isnan().any():  # guilty: a branch, under inference_mode
            raise FloatingPointError("nan")
        return y

    return infer, (torch.randn(4, 8, device=device),)


def one_hot_under_inference_mode(device):
    @torch.inference_mode()
    def encode(ids):
        return functional.one_hot(ids).float()  # guilty: reads the largest id

    return encode, (torch.randint(8, (4,), device=device),)


def slice_under_inference_mode(device):
    @torch.inference_mode()
    def prefix(x, n):
        return x[:, : int(n)] * 2  # guilty: the bound is read

    return prefix, (torch.randn(4, 8, device=device), torch.tensor(3, device=device))


def inverse_under_inference_mode(device):
    @torch.inference_mode()
    def whiten(x):
        return x @ torch.linalg.inv(x.T @ x + torch.eye(4, device=device))  # guilty: checks errors

    return whiten, (torch.randn(8, 4, device=device),)


def topk_under_inference_mode(device):
    @torch.inference_mode()
    def best(x):
        values, index = x.topk(3)
        return values.softmax(-1), index

    return best, (torch.randn(4, 8, device=device),)


def number_of_classes_given(device):
    @torch.no_grad()
    def encode(ids):
        return functional.one_hot(ids, num_classes=8).float()

    return encode, (torch.randint(8, (4,), device=device),)


def cross_entropy_with_ignored(device):
    head = nn.Linear(8, 4, device=device)

    def loss(x, y):
        return functional.cross_entropy(head(x), y, ignore_index=0, reduction="sum") / 4

    return loss, (torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device))


def weight_tying_and_scaling(device):
    table = nn.Embedding(16, 8, device=device)

    def loss(ids):
        hidden = table(ids[:, :-1]) * math.sqrt(8)
        logits = hidden @ table.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return loss, (torch.randint(16, (4, 6), device=device),)


def formats_shapes_only(device):
    def forward(x):
        label = f"{tuple(x.shape)} {x.dtype} {x.device.type}"
        return x * (2.0 if label.startswith("(4") else 1.0)

    return forward, (torch.randn(4, 8, device=device),)


def formats_a_value(device):
    def forward(x):
        label = f"mean {x.mean():.2f}"  # guilty: formatting reads the value
        return x * len(label[:4])

    return forward, (torch.randn(4, 8, device=device),)


def device_of_another_tensor(device):
    offsets = torch.arange(8)

    def forward(x):
        return x + offsets.to(x.device, x.dtype)  # guilty: a pageable copy at each call

    return forward, (torch.randn(4, 8, device=device),)


def new_tensor_from_a_list(device):
    def forward(x):
        return x * x.new_tensor([1.0, 0.5, 0.25, 0.125])  # guilty: a pageable copy at each call

    return forward, (torch.randn(2, 4, device=device),)


def new_full_from_a_number(device):
    def forward(x):
        return x * x.new_full((4,), 0.5) + x.new_zeros(4)

    return forward, (torch.randn(2, 4, device=device),)


def set_item_by_device_index(device):
    def mark(x, index):
        y = x.clone()
        y[torch.arange(4, device=x.device), index] = (
            0.0  # guilty: the number is copied from the host
        )
        return y

    return mark, (torch.randn(4, 8, device=device), torch.randint(8, (4,), device=device))
