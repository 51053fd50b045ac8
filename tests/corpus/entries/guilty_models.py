"""Forward passes and samplers with one mistake each."""

import collections
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class DynamicRope(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.longest = 16
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim))

    def forward(self, x, positions):
        length = positions.max() + 1
        if length > self.longest:  # guilty: a host branch on a device maximum
            self.longest = length
        angles = positions[:, None].float() * self.inv_freq
        return torch.cat([x[..., ::2] * angles.cos(), x[..., 1::2] * angles.sin()], -1)


def dynamic_rope(device):
    rope = DynamicRope().to(device)
    return rope, (torch.randn(6, 8, device=device), torch.arange(6, device=device))


def expert_loop_over_hit_experts(device):
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)
    gate = nn.Linear(8, 4).to(device)

    @torch.no_grad()
    def moe(x):
        weights, chosen = gate(x).softmax(-1).topk(2, -1)
        mask = functional.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0)
        for number, expert in enumerate(experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            out += share * expert(x)
        return out, hit.nonzero()  # guilty: the size depends on data

    return moe, (torch.randn(6, 8, device=device),)


def timestep_given_as_a_number(device):
    mlp = nn.Linear(8, 8).to(device)
    frequencies = torch.exp(torch.arange(4, device=device) * -0.5)

    @torch.no_grad()
    def unet(sample):
        timestep = 981
        if not torch.is_tensor(timestep):
            timestep = torch.tensor([timestep], device=sample.device)  # guilty: unpinned copy
        angles = timestep[:, None].float() * frequencies
        return mlp(sample + torch.cat([angles.sin(), angles.cos()], -1))

    return unet, (torch.randn(2, 8, device=device),)


def load_balance_by_bincount(device):
    gate = nn.Linear(8, 4).to(device)

    def loss(x):
        probabilities = gate(x).softmax(-1)
        counts = torch.bincount(probabilities.argmax(-1), minlength=4)  # guilty: reads the maximum
        return (probabilities.mean(0) * counts).sum() * 4

    return loss, (torch.randn(6, 8, device=device),)


def length_regulator(device):
    def expand(x, durations):
        return x.repeat_interleave(durations, dim=0)  # guilty: the total is read

    return torch.no_grad()(expand), (
        torch.randn(4, 8, device=device),
        torch.tensor([1, 2, 3, 1], device=device),
    )


def rejected_drafts_are_overwritten(device):
    @torch.no_grad()
    def reject(tokens, rows):
        out = tokens.clone()
        out[rows] = -1  # guilty: the number is copied to the device from unpinned memory
        return out

    return reject, (torch.arange(8, device=device), torch.tensor([1, 5], device=device))


def packed_requests_are_split(device):
    norm = nn.LayerNorm(8).to(device)
    starts = torch.tensor([0, 3, 4, 8], device=device)

    @torch.no_grad()
    def attend(x):
        sizes = starts.diff().tolist()  # guilty: read on the host
        return torch.cat([norm(part - part.mean(0)) for part in x.split(sizes)])

    return attend, (torch.randn(8, 8, device=device),)


def alibi_from_numpy(device):
    slopes = np.geomspace(0.5, 0.01, 4, dtype=np.float32)

    @torch.no_grad()
    def bias(scores):
        return (
            scores + torch.from_numpy(slopes).to(scores.device, non_blocking=True)[:, None, None]
        )  # guilty: not pinned

    return bias, (torch.randn(4, 5, 5, device=device),)


def staged_step_number(device):
    host = torch.zeros(1, pin_memory=True)
    on_device = torch.zeros(1, device=device)
    state = {"step": 0}

    @torch.no_grad()
    def scale(x):
        state["step"] += 1
        host[0] = state["step"]  # guilty: the host writes once only
        on_device.copy_(host, non_blocking=True)  # guilty: what the host wrote once
        return x / on_device

    return scale, (torch.randn(4, device=device),)


def frames_in_a_deque(device):
    net = nn.Linear(16, 2).to(device)
    frames = collections.deque([torch.zeros(3, 4, device=device) for _ in range(4)], maxlen=4)

    @torch.no_grad()
    def act(frame):
        frames.append(frame * 2)  # guilty: the queue moves on the host
        return net(torch.cat(list(frames), -1)).argmax(-1)  # guilty: reads other frames

    return act, (torch.randn(3, 4, device=device),)


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tau = 2.0
        self.project = nn.Linear(8, 16)
        self.codes = nn.Embedding(16, 4)

    def forward(self, x):
        soft = functional.softmax(self.project(x) / self.tau, -1)
        self.tau = max(self.tau * 0.9, 0.001)  # guilty: annealed on the host
        return soft @ self.codes.weight


def annealed_codebook(device):
    return Quantizer().to(device), (torch.randn(5, 8, device=device),)


def layerdrop_by_a_cpu_draw(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6)).to(device)

    @torch.no_grad()
    def encode(x):
        for layer in layers:
            if torch.rand([]) < 0.5:  # guilty: drawn on the host
                continue
            x = x + layer(x)
        return x

    return encode, (torch.randn(3, 8, device=device),)


def latents_from_a_cpu_generator(device):
    generator = torch.Generator("cpu").manual_seed(3)

    @torch.no_grad()
    def noise(sample):
        latents = torch.randn(sample.shape, generator=generator, device="cpu")
        return sample + latents.to(sample.device)  # guilty: unpinned copy

    return noise, (torch.randn(2, 4, device=device),)


def activations_are_quantized(device):
    @torch.no_grad()
    def quantize(x):
        scale = x.abs().amax() / 127
        zero = torch.zeros((), dtype=torch.int32, device=x.device)
        return torch.quantize_per_tensor(
            x, scale, zero, torch.qint8
        ).dequantize()  # guilty: reads scale

    return quantize, (torch.randn(4, 8, device=device),)


def adjacency_is_coalesced(device):
    edges = torch.tensor([[0, 1, 1, 2], [1, 2, 2, 0]], device=device)

    @torch.no_grad()
    def conv(x, weights):
        adjacency = torch.sparse_coo_tensor(edges, weights, (3, 3)).coalesce()  # guilty: counts
        return torch.sparse.mm(adjacency, x)

    return conv, (torch.randn(3, 4, device=device), torch.rand(4, device=device))


@dataclass
class Stats:
    calls: int = 0
    every: int = 2
    norms: list = field(default_factory=list)


def router_is_refreshed_every_second_call(device):
    stats, table = Stats(), torch.zeros(8, device=device)

    @torch.no_grad()
    def route(x):
        stats.calls += 1
        if stats.calls % stats.every == 0:  # guilty: a count of the host
            table.copy_(x.mean(0))
        return x - table

    return route, (torch.randn(4, 8, device=device),)


def side_stream_is_not_joined(device):
    side = torch.cuda.Stream()
    left, right = nn.Linear(8, 8).to(device), nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def both(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # guilty: never joined
            shared = right(x)  # guilty: work that nobody waits for
        return left(x), shared

    return both, (torch.randn(4, 8, device=device),)


def gp_likelihood(device):
    def nll(x):
        kernel = torch.exp(-torch.cdist(x, x)) + 0.1 * torch.eye(5, device=x.device)
        factor = torch.linalg.cholesky(kernel)  # guilty: asks whether it went well
        return factor.diagonal().log().sum()

    return torch.no_grad()(nll), (torch.randn(5, 2, device=device),)


def ctc_best_path(device):
    @torch.no_grad()
    def collapse(logits):
        return torch.unique_consecutive(logits.argmax(-1))  # guilty: size depends on data

    return collapse, (torch.randn(12, 5, device=device),)
