"""Custom ops, compiled regions, extensions, and calls that PyTorch does not see."""

import ctypes

import numpy as np
import torch
from torch import nn
from torch.nn import functional


@torch.library.custom_op("corpus::softcap", mutates_args=())
def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


@softcap.register_fake
def _softcap_shape(x, cap):
    return torch.empty_like(x)


def logits_with_softcap(device):
    head = nn.Linear(8, 16, device=device)

    @torch.no_grad()
    def forward(x):
        return softcap(head(x), 30.0)

    return forward, (torch.randn(4, 8, device=device),)


@torch.library.custom_op("corpus::quantile_clip", mutates_args=())
def quantile_clip(x: torch.Tensor, q: float) -> torch.Tensor:
    bound = x.abs().flatten().kthvalue(int(q * x.numel())).values
    return x.clamp(-bound.item(), bound.item())  # guilty: reads the bound inside of an op


def clips_outliers(device):
    @torch.no_grad()
    def forward(x):
        return quantile_clip(x, 0.9)

    return forward, (torch.randn(4, 8, device=device),)


@torch.library.custom_op("corpus::drop_padding", mutates_args=())
def drop_padding(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    kept = x[ids != 0]  # guilty: the number of rows is read inside of an op
    return functional.pad(kept, (0, 0, 0, x.shape[0] - kept.shape[0]))


def packs_tokens(device):
    @torch.no_grad()
    def forward(x, ids):
        return drop_padding(x, ids)

    return forward, (torch.randn(8, 4, device=device), torch.randint(3, (8,), device=device))


@torch.library.custom_op("corpus::host_table", mutates_args=())
def host_table(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([0.1, 0.2, 0.3, 0.4])
    return x * table.to(x.device)  # guilty: a pageable copy inside of an op


def gamma_correction(device):
    @torch.no_grad()
    def forward(x):
        return host_table(x)

    return forward, (torch.rand(8, 4, device=device),)


@torch.library.custom_op("corpus::add_", mutates_args=("total",))
def add_into(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x.sum(0))


def accumulates_through_an_op(device):
    total = torch.zeros(4, device=device)

    @torch.no_grad()
    def forward(x):
        add_into(total, x)
        return total / 10

    return forward, (torch.randn(8, 4, device=device),)


@torch.library.custom_op("corpus::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@square.register_fake
def _square_shape(x):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _square_backward(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


square.register_autograd(_square_backward, setup_context=_keep)


def custom_op_with_gradient(device):
    model = nn.Linear(4, 4, device=device)

    def forward(x):
        return square(model(x))

    return forward, (torch.randn(8, 4, device=device),)


@torch.library.custom_op("corpus::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@scaled.register_fake
def _scaled_shape(x):
    return torch.empty_like(x)


def _scaled_backward(ctx, grad):
    if grad.isnan().any():  # guilty: the backward of an op branches on a value
        raise ValueError("nan")
    return grad * 3


scaled.register_autograd(_scaled_backward)


def custom_op_checks_its_gradient(device):
    model = nn.Linear(4, 4, device=device)

    def forward(x):
        return scaled(model(x))

    return forward, (torch.randn(8, 4, device=device),)


CALLS = {"noise": 0}


@torch.library.custom_op("corpus::jitter", mutates_args=())
def jitter(x: torch.Tensor) -> torch.Tensor:
    CALLS["noise"] += 1  # guilty: counted on the host, inside of an op
    return x + 0.01 * CALLS["noise"]  # guilty: the count of the capture


def jitters_by_call(device):
    @torch.no_grad()
    def forward(x):
        return jitter(x)

    return forward, (torch.randn(8, 4, device=device),)


def through_numpy(device):
    def forward(x):
        host = np.tanh(x.detach().cpu().numpy())  # guilty: computes with NumPy on the host
        return torch.from_numpy(host).to(device)

    return forward, (torch.randn(8, 4, device=device),)


def constants_by_numpy(device):
    window = np.hanning(16).astype(np.float32)
    taps = torch.from_numpy(window).to(device)

    def forward(x):
        return x * taps * float(window.sum())

    return forward, (torch.randn(4, 16, device=device),)


def numpy_table_by_step(device):
    table = np.linspace(1.0, 0.0, 5000)
    step = [0]

    def forward(x):
        factor = table[min(step[0] // 100, 4999)]
        step[0] += 1  # guilty: the row is chosen on the host
        return x * float(factor)  # guilty: the factor of the capture

    return forward, (torch.randn(4, 16, device=device),)


def numpy_window_as_operand(device):
    window = np.hanning(16).astype(np.float32)

    def forward(x):
        return x * torch.as_tensor(window, device=device)  # guilty: a pageable copy at each call

    return forward, (torch.randn(4, 16, device=device),)


def data_pointer_for_a_library(device):
    seen = ctypes.c_void_p()

    def forward(x):
        seen.value = x.data_ptr()
        return x * 2

    return forward, (torch.randn(4, 16, device=device),)


def scripted_function(device):
    @torch.jit.script
    def gelu_like(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)

    def forward(x):
        return gelu_like(x)

    return forward, (torch.randn(4, 16, device=device),)


def scripted_with_a_value_branch(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        if bool((y > 100).any()):  # guilty: bool() of a tensor of the device
            y = y.clamp(max=100)
        return y

    return forward, (torch.randn(4, 16, device=device),)


class TaggedTensor(torch.Tensor):
    """A tensor with a label, as some libraries have."""


def tensor_subclass_passes_through(device):
    def forward(x):
        return (x.as_subclass(TaggedTensor) * 2).as_subclass(torch.Tensor) + 1

    return forward, (torch.randn(4, 16, device=device),)


def sparse_embedding_gradient(device):
    table = nn.Embedding(32, 4, sparse=True, device=device)
    ids = torch.randint(32, (8,), device=device)

    def step():
        loss = table(ids).sum()
        (gradient,) = torch.autograd.grad(loss, table.weight)
        return gradient.coalesce().values()  # guilty: finds the distinct rows on the host

    return step


def embedding_bag_mean(device):
    bag = nn.EmbeddingBag(32, 4, mode="mean").to(device)
    offsets = torch.tensor([0, 3, 5], device=device)

    def forward(ids):
        return bag(ids, offsets)

    return forward, (torch.randint(32, (8,), device=device),)


def flex_like_score_mod(device):
    slopes = 2.0 ** -torch.arange(1, 3, device=device)
    distance = torch.arange(8, device=device)[:, None] - torch.arange(8, device=device)

    def attend(q, k, v):
        bias = -slopes[:, None, None] * distance.abs()
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])

    shape = (1, 2, 8, 4)
    return attend, tuple(torch.randn(shape, device=device) for _ in range(3))
