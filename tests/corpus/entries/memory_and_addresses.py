"""Allocation, addresses, rebinding, copies and pinned memory."""

import copy
import pickle

import torch
from torch import nn
from torch.nn import functional


def scratch_of_each_call(device):
    def smooth(x):
        scratch = torch.empty_like(x)
        torch.mul(x, 0.5, out=scratch)
        return scratch + x.roll(1, 0)

    return smooth, (torch.randn(8, 8, device=device),)


def scratch_kept_between_calls(device):
    scratch = torch.empty(8, 8, device=device)

    def smooth(x):
        torch.mul(x, 0.5, out=scratch)
        return scratch + x.roll(1, 0)

    return smooth, (torch.randn(8, 8, device=device),)


def scratch_replaced_in_each_call(device):
    buffers = {}

    def smooth(x):
        buffers["half"] = torch.empty_like(x)
        torch.mul(x, 0.5, out=buffers["half"])
        return buffers["half"] + x.roll(1, 0)

    return smooth, (torch.randn(8, 8, device=device),)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)
        self.hidden = None

    def forward(self, x):
        if self.hidden is None:
            self.hidden = torch.zeros(x.shape[0], 8, device=x.device)
        self.hidden = self.cell(x, self.hidden).detach()  # guilty: replays begin at an old tensor
        return self.hidden * 2  # guilty: replays begin at an old tensor


def hidden_state_is_rebound(device):
    return Recurrent().to(device), (torch.randn(4, 8, device=device),)


class InPlaceRecurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)
        self.register_buffer("hidden", torch.zeros(4, 8))

    def forward(self, x):
        new = self.cell(x, self.hidden.clone())
        self.hidden.copy_(new.detach())
        return new * 2


def hidden_state_is_copied(device):
    return InPlaceRecurrent().to(device), (torch.randn(4, 8, device=device),)


def running_maximum_rebound(device):
    state = {"peak": torch.zeros(8, device=device)}

    def track(x):
        state["peak"] = torch.maximum(state["peak"], x.amax(0))  # guilty: rebound in each call
        return x / (state["peak"] + 1e-3)  # guilty: rebound in each call

    return track, (torch.rand(4, 8, device=device),)


def running_maximum_in_place(device):
    peak = torch.zeros(8, device=device)

    def track(x):
        torch.maximum(peak, x.amax(0), out=peak)
        return x / (peak + 1e-3)

    return track, (torch.rand(4, 8, device=device),)


def swaps_two_buffers(device):
    fields = [torch.rand(16, 16, device=device), torch.zeros(16, 16, device=device)]
    kernel = torch.full((1, 1, 3, 3), 1 / 9, device=device)

    def diffuse():
        now, then = fields
        then.copy_(functional.conv2d(now[None, None], kernel, padding=1)[0, 0])  # guilty: same two
        fields.reverse()  # guilty: replays read and write the same two for ever
        return fields[0] * 1.0  # guilty: replays read and write the same two for ever

    return diffuse


def swaps_twice(device):
    fields = [torch.rand(16, 16, device=device), torch.zeros(16, 16, device=device)]
    kernel = torch.full((1, 1, 3, 3), 1 / 9, device=device)

    def diffuse():
        for _ in range(2):
            now, then = fields
            then.copy_(functional.conv2d(now[None, None], kernel, padding=1)[0, 0])
            fields.reverse()
        return fields[0] * 1.0

    return diffuse


def pads_with_new_zeros(device):
    def pad(x):
        zeros = torch.zeros(x.shape[0], 3, device=x.device)
        return torch.cat([zeros, x, zeros], 1)

    return pad, (torch.randn(4, 8, device=device),)


def constant_from_python_numbers(device):
    def normalise(images):
        mean = torch.tensor([0.485, 0.456, 0.406], device=device)  # guilty: a pageable copy
        return images - mean[:, None, None]

    return normalise, (torch.rand(2, 3, 8, 8, device=device),)


def constant_made_once(device):
    mean = torch.tensor([0.485, 0.456, 0.406], device=device)

    def normalise(images):
        return images - mean[:, None, None]

    return normalise, (torch.rand(2, 3, 8, 8, device=device),)


def constant_by_full(device):
    def normalise(images):
        return images - torch.full((1,), 0.456, device=images.device)

    return normalise, (torch.rand(2, 3, 8, 8, device=device),)


def scalar_tensor_on_device(device):
    def scale(x):
        return x * torch.tensor(0.5, device=device)  # guilty: a pageable copy

    return scale, (torch.rand(2, 3, device=device),)


def host_scalar_as_an_operand(device):
    half = torch.tensor(0.5)

    def scale(x):
        return x * half

    return scale, (torch.rand(2, 3, device=device),)


def host_scalar_that_changes(device):
    step = torch.tensor(0.0)

    def scale(x):
        step.add_(1)  # guilty: a host tensor, which no replay changes
        return x / (1 - 0.9**step)  # guilty: its value becomes an argument of the kernel

    return scale, (torch.rand(2, 3, device=device),)


def pinned_input_copied_in(device):
    source = torch.randn(4, 8).pin_memory()
    static = torch.empty(4, 8, device=device)

    def load():
        static.copy_(source, non_blocking=True)
        return static * 2

    return load


def pageable_input_copied_in(device):
    source = torch.randn(4, 8)
    static = torch.empty(4, 8, device=device)

    def load():
        static.copy_(source)  # guilty: a copy from pageable memory
        return static * 2

    return load


def pinned_output(device):
    target = torch.empty(4, 8).pin_memory()

    def save(x):
        target.copy_(x * 2, non_blocking=True)
        return x + 1

    return save, (torch.randn(4, 8, device=device),)


def offloads_activations(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)

    def loss(x):
        with torch.autograd.graph.save_on_cpu():
            return model(x).square().mean()  # guilty: saved tensors are copied to the host

    return loss, (torch.randn(4, 8, device=device),)


def deep_copy_in_the_step(device):
    model = nn.Linear(8, 8, device=device)

    def perturbed(x):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.weight.add_(0.1)
        return twin(x).detach()

    return perturbed, (torch.randn(4, 8, device=device),)


def pickled_in_the_step(device):
    def snapshot(x):
        y = x * 2
        blob = pickle.dumps(y)  # guilty: pickling copies the tensor to the host
        return y + len(blob) % 2

    return snapshot, (torch.randn(4, 8, device=device),)


def new_layer_in_each_call(device):
    @torch.no_grad()
    def probe(x):
        layer = nn.Linear(8, 8).to(device)  # guilty: weights are drawn and copied from the host
        return layer(x)

    return probe, (torch.randn(4, 8, device=device),)


def new_layer_on_the_device(device):
    @torch.no_grad()
    def probe(x):
        layer = nn.Linear(8, 8, device=x.device)
        return layer(x)

    return probe, (torch.randn(4, 8, device=device),)


def moves_between_dtypes(device):
    def mixed(x):
        return (x.half() @ x.half().T).float() + x.double().sum(1).to(torch.float32)

    return mixed, (torch.randn(8, 8, device=device),)


def to_the_same_device(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        return model(x.to(device).contiguous().to(torch.float32))

    return forward, (torch.randn(4, 8, device=device),)


def buffer_left_on_the_host(device):
    table = torch.linspace(0, 1, 8)

    def forward(x):
        return x * table.to(x.device)  # guilty: a pageable copy at every call

    return forward, (torch.randn(4, 8, device=device),)


def model_left_on_the_host(device):
    model = nn.Linear(8, 8)

    def forward(x):
        return model(x.cpu()).to(device)  # guilty: computes on the host

    return forward, (torch.randn(4, 8, device=device),)


def empties_the_cache(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        y = model(x)
        torch.cuda.empty_cache()
        return y

    return forward, (torch.randn(4, 8, device=device),)


def reports_memory(device):
    model = nn.Linear(8, 8, device=device)
    peak = []

    def forward(x):
        y = model(x)
        if len(peak) < 1:
            peak.append(torch.cuda.max_memory_allocated())
        return y

    return forward, (torch.randn(4, 8, device=device),)


def uninitialized_accumulator(device):
    total = torch.zeros(8, device=device)

    def accumulate(x):
        total.add_(x.sum(0))
        return total / 2

    return accumulate, (torch.randn(4, 8, device=device),)


def grows_a_buffer(device):
    buffer = torch.zeros(0, 8, device=device)

    def append(x):
        nonlocal buffer
        buffer = torch.cat([buffer, x])[-12:]  # guilty: the name is bound to a new tensor
        return buffer.mean(0)  # guilty: the name is bound to a new tensor

    return append, (torch.randn(4, 8, device=device),)


def ring_buffer_with_device_pointer(device):
    buffer = torch.zeros(16, 8, device=device)
    head = torch.zeros(1, dtype=torch.long, device=device)

    def append(x):
        buffer.index_copy_(0, head, x)
        head.add_(1).remainder_(16)
        return buffer.mean(0)

    return append, (torch.randn(1, 8, device=device),)


def ring_buffer_with_python_pointer(device):
    buffer = torch.zeros(16, 8, device=device)
    head = 0

    def append(x):
        nonlocal head
        buffer[head] = x[0]  # guilty: always the same row
        head = (head + 1) % 16  # guilty: counted on the host
        return buffer.mean(0)

    return append, (torch.randn(1, 8, device=device),)
