"""Forward passes and samplers that look suspicious and are right."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def mask_gets_a_number(device):
    @torch.no_grad()
    def attend(scores, mask):
        scores = scores.clone()
        scores[mask] = float("-inf")
        return scores.softmax(-1)

    scores = torch.randn(4, 6, device=device)
    return attend, (scores, torch.ones(4, 6, device=device).triu(2).bool())


def exponential_race(device):
    head = nn.Linear(8, 12).to(device)

    @torch.inference_mode()
    def sample(hidden):
        probabilities = head(hidden).float().softmax(-1)
        race = torch.empty_like(probabilities).exponential_()
        return probabilities.div_(race).argmax(-1)

    return sample, (torch.randn(3, 8, device=device),)


def own_generator_of_the_device(device):
    generator = torch.Generator(device).manual_seed(5)

    @torch.no_grad()
    def noise(x):
        return x + torch.randn(x.shape, generator=generator, device=x.device)

    return noise, (torch.randn(3, 8, device=device),)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.routed, self.shared = nn.Linear(8, 8), nn.Linear(8, 8)
        self.side, self.begin, self.end = (
            torch.cuda.Stream(),
            torch.cuda.Event(),
            torch.cuda.Event(),
        )

    def forward(self, x):
        self.begin.record()
        with torch.cuda.stream(self.side):
            self.begin.wait()
            shared = self.shared(x)
            self.end.record()
        routed = self.routed(x)
        self.end.wait()
        shared.record_stream(torch.cuda.current_stream())
        return routed + shared


def shared_expert_on_a_side_stream(device):
    module = Shared().to(device).requires_grad_(False)
    return module, (torch.randn(4, 8, device=device),)


def pinned_table_copied_each_time(device):
    table = torch.linspace(0, 1, 8).pin_memory()
    on_device = torch.empty(8, device=device)

    @torch.no_grad()
    def forward(x):
        on_device.copy_(table, non_blocking=True)
        return x * on_device

    return forward, (torch.randn(3, 8, device=device),)


def experts_by_sorted_tokens(device):
    w = torch.randn(4, 8, 8, device=device)
    gate = nn.Linear(8, 4).to(device)

    @torch.no_grad()
    def moe(x):
        weight, chosen = gate(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.zeros(4, dtype=torch.long, device=x.device)
        counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        ends = counts.cumsum(0)
        owner = torch.searchsorted(ends, torch.arange(6, device=x.device), right=True)
        moved = torch.bmm(x[order][:, None], w[owner])[:, 0]
        return torch.empty_like(x).index_copy_(0, order, moved) * weight[:, None]

    return moe, (torch.randn(6, 8, device=device),)


def expansion_to_a_known_length(device):
    @torch.no_grad()
    def expand(x, durations):
        return x.repeat_interleave(durations, dim=0, output_size=7)

    return expand, (torch.randn(3, 8, device=device), torch.tensor([2, 2, 3], device=device))


def one_hot_of_known_width(device):
    @torch.no_grad()
    def encode(ids):
        return functional.one_hot(ids % 4, num_classes=4).float().cumsum(0)

    return encode, (torch.arange(6, device=device),)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        codes = torch.where(x > 0, 1.0, -1.0)
        ctx.save_for_backward(x)
        ctx.width = x.shape[-1]
        return codes

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        limited = torch.where(x.abs() < 1, grad, 0.0)
        return limited / limited.norm().clamp_min(1e-6) if ctx.width > 4 else limited


def straight_through_binarizer(device):
    net = nn.Linear(8, 8).to(device)
    return (lambda x: Straight.apply(net(x)).sum()), (torch.randn(4, 8, device=device),)


def features_kept_by_a_hook(device):
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    kept = torch.zeros(4, 8, device=device)

    def keep(_module, _inputs, output):
        kept.copy_(output.detach())

    net[1].register_forward_hook(keep)

    @torch.no_grad()
    def forward(x):
        return net(x) * kept.mean()

    return forward, (torch.randn(4, 8, device=device),)


@dataclass(frozen=True)
class Schedule:
    alphas: tuple = (0.1, 0.4, 0.7, 0.95)

    def steps(self):
        yield from zip(self.alphas, self.alphas[1:], strict=False)


def unrolled_ddim(device):
    net, schedule = nn.Linear(8, 8).to(device), Schedule()

    @torch.no_grad()
    def denoise(x):
        for now, after in schedule.steps():
            noise = net(x)
            clean = (x - (1 - now) ** 0.5 * noise) / now**0.5
            x = after**0.5 * clean + (1 - after) ** 0.5 * noise
        return x

    return denoise, (torch.randn(2, 8, device=device),)


def paged_write_and_gather(device):
    pages = torch.zeros(4, 4, 8, device=device)
    lengths = torch.zeros(2, dtype=torch.long, device=device)
    table = torch.tensor([[2, 0], [1, 3]], device=device)

    @torch.no_grad()
    def decode(k):
        slot = lengths % 8
        rows = torch.arange(2, device=k.device)
        pages[table[rows, slot // 4], slot % 4] = k
        lengths.add_(1)
        keys = pages[table].flatten(1, 2)
        mask = torch.arange(8, device=k.device) < lengths[:, None]
        scores = torch.einsum("bd,bnd->bn", k, keys).masked_fill(~mask, -1e9)
        return scores.softmax(-1)

    return decode, (torch.randn(2, 8, device=device),)


def nucleus_by_sorting(device):
    @torch.no_grad()
    def sample(logits):
        values, places = logits.sort(-1, descending=True)
        total = values.softmax(-1).cumsum(-1)
        values = values.masked_fill(total - values.softmax(-1) > 0.9, float("-inf"))
        gumbel = -torch.rand_like(values).clamp_min(1e-9).log().clamp_min(1e-9).log()
        return places.gather(-1, (values + gumbel).argmax(-1, keepdim=True))

    return sample, (torch.randn(3, 16, device=device),)


def checkpoint_without_random_state(device):
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(device)

    def forward(x):
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


def scale_is_a_host_tensor(device):
    scale = torch.tensor(0.125)

    @torch.no_grad()
    def attend(q, k):
        return ((q * scale) @ k.mT + torch.tensor(1.0)).softmax(-1)

    return attend, (torch.randn(4, 8, device=device), torch.randn(4, 8, device=device))


def relative_buckets(device):
    bias = nn.Embedding(8, 2).to(device)

    @torch.no_grad()
    def forward(scores):
        n = scores.shape[-1]
        place = torch.arange(n, device=scores.device)
        distance = (place[:, None] - place[None]).abs()
        far = 4 + (distance.float().clamp_min(1) / 4).log().mul(2).long().clamp(0, 3)
        bucket = torch.where(distance < 4, distance, far)
        return scores + bias(bucket).permute(2, 0, 1) if n > 4 else scores

    return forward, (torch.randn(2, 10, 10, device=device),)


def graph_attention_softmax(device):
    source = torch.tensor([0, 1, 2, 3, 0], device=device)
    target = torch.tensor([1, 1, 2, 0, 3], device=device)

    @torch.no_grad()
    def conv(x):
        score = (x[source] * x[target]).sum(-1)
        top = score.new_full((4,), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - top[target]).exp()
        total = weight.new_zeros(4).scatter_add(0, target, weight)
        share = weight / total[target]
        return torch.zeros_like(x).index_add(0, target, share[:, None] * x[source])

    return conv, (torch.randn(4, 8, device=device),)


def fake_quantized_with_tensor_scale(device):
    zero = torch.zeros((), dtype=torch.int32, device=device)

    @torch.no_grad()
    def forward(x):
        scale = x.abs().amax() / 127
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)

    return forward, (torch.randn(4, 8, device=device),)


def bag_of_features(device):
    bag = nn.EmbeddingBag(32, 8, mode="sum").to(device)
    offsets = torch.tensor([0, 2, 5], device=device)

    @torch.no_grad()
    def forward(ids):
        return bag(ids, offsets)

    return forward, (torch.arange(8, device=device),)


def random_patches_are_kept(device):
    @torch.no_grad()
    def mask(x):
        order = torch.rand(x.shape[:2], device=x.device).argsort(1)
        keep = order[:, : int(x.shape[1] * 0.25)]
        kept = x.gather(1, keep[..., None].expand(-1, -1, x.shape[2]))
        flags = torch.ones(x.shape[:2], device=x.device).scatter(1, keep, 0.0)
        return kept, flags, order.argsort(1)

    return mask, (torch.randn(2, 8, 4, device=device),)
