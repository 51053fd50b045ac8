"""Less used parts of PyTorch: subclasses, transforms, random states, streams by several ways,
scripts with state, nested and sparse tensors, transforms of Fourier, questions to the device."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import nn
from torch.nn import functional


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


class _Metres(torch.Tensor):
    """A tensor with a unit, which it hands on."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls):
            result.unit = "m"
        return result


# The subclass runs the same ops on the same memory.
def tensor_with_a_unit(device):
    layer, x = _layer_and_input(device)

    def forward(x):
        return (layer(x.as_subclass(_Metres)) * 2.0).relu().as_subclass(torch.Tensor)

    return forward, (x,)


class _Noisy(torch.Tensor):
    """A product grows with the ops that have run."""

    ops = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.ops += 1  # guilty: no replay counts
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.mul:
            plain = result.as_subclass(torch.Tensor)
            return plain * (1 + cls.ops // 2000)  # guilty: the factor of the capture
        return result


def tensor_that_counts_its_ops(device):
    layer, x = _layer_and_input(device)

    def forward(x):
        return layer(x.as_subclass(_Noisy) * 2.0)

    return forward, (x,)


# Questions about the device are answered from properties, not by the stream.
def path_by_the_device(device):
    layer, x = _layer_and_input(device)

    def forward(x):
        fast = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
        tiles = torch.cuda.get_device_properties(x.device).multi_processor_count if fast else 1
        parts = x.chunk(2 if tiles > 1 else 1)
        return torch.cat([layer(part) for part in parts])

    return forward, (x,)


# A block that is entered with no stream does nothing.
def optional_side_stream(device):
    layer, x = _layer_and_input(device)

    def forward(x, stream=None):
        with torch.cuda.stream(stream):
            y = layer(x)
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            return y.relu()

    return forward, (x,)


# The second stream waits for the first, but the first goes on after that.
def works_after_the_last_event(device):
    layer, x = _layer_and_input(device)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    @torch.no_grad()
    def forward(x):
        main = torch.cuda.current_stream()
        first.wait_stream(main)
        with torch.cuda.stream(first):
            y = layer(x)
        second.wait_stream(first)
        with torch.cuda.stream(first):
            y.norm()  # guilty: never joined
        with torch.cuda.stream(second):
            z = y.relu()
        main.wait_stream(second)
        return z

    return forward, (x,)


# The main stream waits for the last, which waits for the first: all are joined.
def joined_through_another_stream(device):
    layer, x = _layer_and_input(device)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    @torch.no_grad()
    def forward(x):
        main = torch.cuda.current_stream()
        first.wait_stream(main)
        with torch.cuda.stream(first):
            y = layer(x)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            z = y.relu()
        main.wait_stream(second)
        return z + y

    return forward, (x,)


# The table belongs to a stream, and the capture runs on a stream of its own.
def table_of_each_stream(device):
    layer, x = _layer_and_input(device)
    tables = {}

    def forward(x):
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in tables:
            tables[stream] = torch.tensor([1.0, 2.0] * 4, device=x.device)  # guilty: from a list
        return layer(x) * tables[stream]

    return forward, (x,)


# The same, but the scratch memory is made on the device, which a capture permits.
def scratch_of_each_stream(device):
    layer, x = _layer_and_input(device)
    scratch = {}

    @torch.no_grad()
    def forward(x):
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in scratch:
            scratch[stream] = torch.empty(4, 8, device=x.device)
        torch.mul(x, 2.0, out=scratch[stream])
        return layer(scratch[stream])

    return forward, (x,)


class _Counting(nn.Module):
    """Scripted, with a number of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) * (1.0 + float(self.calls // 900))


# The number is an attribute of the scripted module, in C++.
def scripted_module_counts(device):
    model = torch.jit.script(_Counting().to(device))

    def forward(x):
        return model(x)  # guilty: no replay counts, and the factor is that of the capture

    return forward, (torch.randn(4, 8, device=device),)


# The model is made of functions and a dictionary of tensors; gradients of each row.
def rows_weighted_by_their_gradient(device):
    layer, x = _layer_and_input(device)
    target = torch.randn(4, 8, device=device)
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights, x, y):
        return functional.mse_loss(
            torch.func.functional_call(layer, weights, (x.unsqueeze(0),))[0], y
        )

    def forward(x):
        grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, target)
        norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
        share = (1.0 / norms).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", share, g) for name, g in grads.items()}

    return forward, (x,)


# The probe of the trace is drawn on the host, once for each call.
def trace_by_host_probes(device):
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)

    def forward(x):
        draws = torch.randint(0, 2, (8,)).tolist()  # guilty: drawn on the host
        signs = [1.0 if v else -1.0 for v in draws]
        probe = torch.stack(
            [x[:, i] * 0 + s for i, s in enumerate(signs)], 1
        )  # guilty: frozen signs
        _, jv = torch.func.jvp(net, (x,), (probe,))
        return (jv * probe).sum(1)

    return forward, (torch.randn(4, 8, device=device),)


# The probe is drawn by the device's generator, which the graph advances.
def trace_by_device_probes(device):
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)

    def forward(x):
        probe = torch.randint(0, 2, x.shape, device=x.device).mul(2).sub(1).to(x.dtype)
        _, vjp = torch.func.vjp(net, x)
        return (vjp(probe)[0] * probe).sum(1)

    return forward, (torch.randn(4, 8, device=device),)


# Long convolution by transforms of Fourier, with a complex diagonal recurrence as its kernel.
def state_space_by_fourier(device):
    log_decay = nn.Parameter(torch.rand(8, device=device))
    angle = nn.Parameter(torch.rand(8, device=device) * math.pi)
    time = torch.arange(16, device=device)

    def forward(x):
        pole = torch.polar((-log_decay.exp()).exp(), angle)
        kernel = torch.pow(pole.unsqueeze(-1), time).real
        y = torch.fft.irfft(torch.fft.rfft(x, n=32) * torch.fft.rfft(kernel, n=32), n=32)
        return y[..., :16] + x

    return forward, (torch.randn(2, 8, 16, device=device),)


# The strongest frequencies are kept, and their number depends on the energy.
def frequencies_by_energy(device):
    layer = nn.Linear(16, 16).to(device)

    def forward(x):
        z = torch.fft.rfft(layer(x))
        energy = z.abs().square().sum(0)
        share = energy.sort(descending=True).values.cumsum(0) / energy.sum()
        keep = int((share < 0.9).sum()) + 1  # guilty: reads a count of the device
        best = energy.topk(keep).indices
        return torch.fft.irfft(torch.zeros_like(z).index_copy(1, best, z[:, best]), n=16)

    return forward, (torch.randn(4, 16, device=device),)


# Rows of different lengths: offsets of the device are constants, and the shape is the layout's.
def jagged_rows_with_known_lengths(device):
    layer = nn.Linear(8, 8).to(device)
    offsets = torch.tensor([0, 3, 4, 9], device=device)

    def forward(values):
        rows = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=5)
        return (layer(rows) * 2).values()

    return forward, (torch.randn(9, 8, device=device),)


# Without the largest length, padding fills up to the number of all values, which is a size.
def jagged_rows_are_padded(device):
    layer = nn.Linear(8, 8).to(device)
    offsets = torch.tensor([0, 3, 4, 9], device=device)

    def forward(values):
        rows = torch.nested.nested_tensor_from_jagged(layer(values), offsets)
        return torch.nested.to_padded_tensor(rows, 0.0)

    return forward, (torch.randn(9, 8, device=device),)


# The orthogonal factor by exponentials of skew matrices, or by series of known length.
def orthogonal_by_cayley(device):
    raw = nn.Parameter(torch.randn(6, 6, device=device) / 4)
    eye = torch.eye(6, device=device)

    def forward(x):
        a = raw - raw.T
        inverse, term = eye, eye
        for _ in range(8):
            term = term @ (-a / 8)
            inverse = inverse + term
        return x @ (inverse @ (eye - a / 8))

    return forward, (torch.randn(4, 6, device=device),)


# The rotation is exact, and the solver reads its error code.
def orthogonal_by_solve(device):
    raw = nn.Parameter(torch.randn(6, 6, device=device) / 4)
    eye = torch.eye(6, device=device)

    def forward(x):
        a = raw - raw.T
        return x @ torch.linalg.solve(eye + a, eye - a)  # guilty: checks for a singular matrix

    return forward, (torch.randn(4, 6, device=device),)
