"""Samplers of diffusion and language models: schedules, histories, caches, suppressed tokens."""

import math

import torch
from torch import nn


class _Denoiser(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 32), nn.SiLU(), nn.Linear(32, dim))

    def forward(self, x, sigma):
        return self.net(torch.cat([x, sigma.expand(x.shape[0], 1)], dim=1))


class HostEuler:
    """Keeps its sigmas in host memory, so that indexing them does not wait for the device."""

    def __init__(self, steps=20):
        self.sigmas = torch.linspace(1.0, 0.02, steps + 1)
        self.index = 0

    def step(self, output, sample):
        sigma = self.sigmas[self.index]
        target = self.sigmas[self.index + 1]
        derivative = (sample - output) / sigma  # guilty: sigma is a number of the host, and changes
        following = sample + derivative * (target - sigma)  # guilty: as above
        self.index = (self.index + 1) % 20  # guilty: the index advances on the host
        return following


def euler_keeps_sigmas_on_the_host(device):
    model = _Denoiser().to(device).eval()
    scheduler = HostEuler()
    sample = torch.randn(4, 12, device=device)
    level = torch.full((1, 1), 0.5, device=device)

    @torch.no_grad()
    def step():
        sample.copy_(scheduler.step(model(sample, level), sample))
        return sample

    return step


def multistep_keeps_its_last_outputs(device):
    model = _Denoiser().to(device).eval()
    sample = torch.randn(4, 12, device=device)
    level = torch.full((1, 1), 0.3, device=device)
    outputs = [torch.zeros(4, 12, device=device), torch.zeros(4, 12, device=device)]

    @torch.no_grad()
    def step():
        for i in range(len(outputs) - 1):
            outputs[i] = outputs[i + 1]  # guilty: the history is shifted on the host
        outputs[-1] = model(sample, level)  # guilty: as above
        direction = 1.5 * outputs[-1] - 0.5 * outputs[-2]  # guilty: reads what an older call made
        sample.add_(direction, alpha=-0.05)
        return sample

    return step


class SuppressTokens:
    def __init__(self, tokens):
        self.tokens = list(tokens)

    def apply(self, logits):
        logits[:, self.tokens] = -math.inf  # guilty: the list becomes an index tensor on the host


def logits_are_suppressed_by_a_list(device):
    head = nn.Linear(16, 64).to(device)
    suppress = SuppressTokens([1, 2, 7, 9, 30, 58])

    @torch.no_grad()
    def decode(hidden):
        logits = head(hidden)
        suppress.apply(logits)
        return logits.log_softmax(-1).argmax(-1)

    return decode, (torch.randn(3, 16, device=device),)


def logits_are_suppressed_by_a_buffer(device):
    """The token list is a tensor of the device, made once; the filled value is a Python number."""
    head = nn.Linear(16, 64).to(device)
    tokens = torch.tensor([1, 2, 7, 9, 30, 58], device=device)

    @torch.no_grad()
    def decode(hidden):
        logits = head(hidden).index_fill_(1, tokens, -math.inf)
        logits[:, 0] = -1e4
        return logits.log_softmax(-1).argmax(-1)

    return decode, (torch.randn(3, 16, device=device),)


class GrowingPrompt:
    def __init__(self, device):
        self.embed = nn.Embedding(40, 16).to(device)
        self.head = nn.Linear(16, 40).to(device)
        self.tokens = torch.zeros(2, 1, dtype=torch.long, device=device)

    @torch.no_grad()
    def extend(self):
        context = self.embed(self.tokens[:, -8:]).mean(1)  # guilty: reads the prompt of the capture
        following = self.head(context).argmax(-1, keepdim=True)
        self.tokens = torch.cat((self.tokens, following), dim=1)  # guilty: a longer tensor
        return following


def prompt_grows_by_cat(device):
    return GrowingPrompt(device).extend


def noise_is_drawn_on_the_cpu(device):
    model = _Denoiser().to(device).eval()
    sample = torch.randn(4, 12, device=device)
    level = torch.full((1, 1), 0.3, device=device)
    generator = torch.Generator("cpu").manual_seed(0)

    @torch.no_grad()
    def step():
        noise = torch.randn(4, 12, generator=generator)
        noise = noise.to(device)  # guilty: copies from pageable memory
        sample.copy_(model(sample, level) + 0.1 * noise)
        return sample

    return step


class _CachedDecoder(nn.Module):
    def __init__(self, length=16, dim=16, vocabulary=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.head = nn.Linear(dim, vocabulary)
        self.register_buffer("keys", torch.zeros(2, length, dim))
        self.register_buffer("values", torch.zeros(2, length, dim))
        self.register_buffer("mask", torch.tril(torch.ones(length, length, dtype=torch.bool)))

    def forward(self, token, position):
        q, k, v = self.qkv(self.embed(token)).chunk(3, dim=-1)
        self.keys[:, position] = k
        self.values[:, position] = v
        mask = self.mask[None, position]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.head(y[:, -1])


def decodes_with_a_static_cache(device):
    """The position is a tensor that the step advances; sampling divides by exponential noise."""
    model = _CachedDecoder().to(device).eval()
    token = torch.zeros(2, 1, dtype=torch.long, device=device)
    position = torch.zeros(1, dtype=torch.long, device=device)

    @torch.no_grad()
    def step():
        logits = model(token, position) / 0.8
        v, _ = torch.topk(logits, min(10, logits.size(-1)))
        logits = torch.where(logits < v[:, -1:], -float("inf"), logits)
        probabilities = nn.functional.softmax(logits, dim=-1)
        noise = torch.empty_like(probabilities).exponential_(1)
        token.copy_(torch.argmax(probabilities / noise, dim=-1, keepdim=True))
        position.add_(1).remainder_(16)
        return token

    return step


def accepts_drafted_tokens(device):
    """How many drafts are accepted is a tensor; those behind it are masked, never cut off."""
    target = nn.Linear(16, 32).to(device)
    draft = nn.Linear(16, 32).to(device)

    @torch.no_grad()
    def verify(hidden):
        p, q = target(hidden).softmax(-1), draft(hidden).softmax(-1)
        drafted = q[:, :-1].argmax(-1, keepdim=True)
        ratio = (p[:, :-1].gather(-1, drafted) / q[:, :-1].gather(-1, drafted)).squeeze(-1)
        accepted = torch.rand_like(ratio) < ratio.clamp(max=1)
        count = accepted.long().cumprod(dim=1).sum(dim=1, keepdim=True)
        bonus = p.gather(1, count[..., None].expand(-1, -1, 32)).argmax(-1)
        slots = torch.arange(5, device=hidden.device)
        tokens = torch.cat([drafted.squeeze(-1), bonus], dim=1)
        tokens = torch.where(slots < count, tokens, torch.where(slots == count, bonus, 0))
        return tokens, count

    return verify, (torch.randn(3, 5, 16, device=device),)


def thresholds_by_quantile(device):
    """Dynamic thresholding: the quantile is a Python number, its value stays on the device."""
    model = _Denoiser().to(device).eval()
    level = torch.full((1, 1), 0.7, device=device)

    @torch.no_grad()
    def denoise(sample):
        clean = model(torch.cat([sample] * 2), level)
        uncond, cond = clean.chunk(2)
        guided = uncond + 5.0 * (cond - uncond)
        rescaled = guided * (cond.std(dim=1, keepdim=True) / guided.std(dim=1, keepdim=True))
        guided = 0.7 * rescaled + 0.3 * guided
        s = torch.quantile(guided.abs(), 0.995, dim=1).clamp(min=1.0, max=4.0).unsqueeze(1)
        return torch.maximum(torch.minimum(guided, s), -s) / s

    return denoise, (torch.randn(4, 12, device=device),)


def ddim_reads_its_table_on_the_device(device):
    """The time step counts down in a tensor of the device, by which the table is indexed."""
    model = _Denoiser().to(device).eval()
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0).to(device)
    sample = torch.randn(4, 12, device=device)
    t = torch.full((1,), 49, dtype=torch.long, device=device)

    @torch.no_grad()
    def step():
        now, before = alphas[t], alphas[(t - 5).clamp(min=0)]
        noise = model(sample, now.view(1, 1))
        clean = (sample - (1 - now).sqrt() * noise) / now.sqrt()
        sample.copy_(before.sqrt() * clean + (1 - before).sqrt() * noise)
        t.sub_(5).remainder_(50)
        return sample

    return step
