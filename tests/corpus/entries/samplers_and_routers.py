"""Diffusion samplers, routers of experts, key-value caches, beams and distributions."""

import torch
from torch import nn
from torch.nn import functional


class Ddim:
    """A scheduler that knows at which step it is, as diffusers has it."""

    def __init__(self, steps, device):
        self.alphas = torch.linspace(0.99, 0.1, steps, device=device)
        self.timesteps = list(range(steps - 1, -1, -1))
        self.index = 0

    def step(self, noise, sample):
        t = self.timesteps[self.index % len(self.timesteps)]
        alpha = self.alphas[t]  # guilty: the view of the captured timestep
        self.index += 1  # guilty: here too
        return (sample - (1 - alpha).sqrt() * noise) / alpha.sqrt()


def sampler_knows_its_step(device):
    net = nn.Linear(8, 8, device=device)
    scheduler = Ddim(10, device)
    latents = torch.randn(2, 8, device=device)

    @torch.no_grad()
    def denoise():
        latents.copy_(scheduler.step(net(latents).tanh(), latents))
        return latents

    return denoise


def sampler_runs_all_steps(device):
    net = nn.Linear(8, 8, device=device)
    alphas = torch.linspace(0.99, 0.5, 6).tolist()

    @torch.no_grad()
    def sample(latents):
        for t in reversed(range(6)):
            alpha = alphas[t]
            noise = net(latents).tanh()
            latents = (latents - (1 - alpha) ** 0.5 * noise) / alpha**0.5
            if t > 0:
                latents = latents + 0.01 * torch.randn_like(latents)
        return latents

    return sample, (torch.randn(2, 8, device=device),)


def guidance_only_in_an_interval(device):
    net = nn.Linear(8, 8, device=device)
    sigma = torch.tensor(1.0, device=device)

    @torch.no_grad()
    def denoise(latents, cond):
        scale = 5.0 if 0.3 < sigma < 2.0 else 1.0  # guilty: sigma is on the device
        cond_out, uncond = net(latents + cond), net(latents)
        return uncond + scale * (cond_out - uncond)

    return denoise, (torch.randn(2, 8, device=device), torch.randn(2, 8, device=device))


def guidance_by_where(device):
    net = nn.Linear(8, 8, device=device)
    sigma = torch.tensor(1.0, device=device)

    @torch.no_grad()
    def denoise(latents, cond):
        scale = torch.where((sigma > 0.3) & (sigma < 2.0), 5.0, 1.0)
        cond_out, uncond = net(latents + cond), net(latents)
        return uncond + scale * (cond_out - uncond)

    return denoise, (torch.randn(2, 8, device=device), torch.randn(2, 8, device=device))


class SparseExperts(nn.Module):
    """Mixtral's loop over the experts that were chosen."""

    def __init__(self, dim=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)  # guilty: as many rows as were routed
            out.index_add_(0, row, expert(x[row]) * weights[row, slot, None])
        return out


def experts_get_their_rows(device):
    return SparseExperts().to(device).requires_grad_(False), (torch.randn(16, 8, device=device),)


class DenseExperts(SparseExperts):
    """Every expert sees every row, weighted."""

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        dense = torch.zeros(x.shape[0], len(self.experts), device=x.device, dtype=x.dtype)
        dense = dense.scatter(1, chosen, weights)
        return sum(expert(x) * dense[:, [i][0], None] for i, expert in enumerate(self.experts))


def experts_see_every_row(device):
    return DenseExperts().to(device), (torch.randn(16, 8, device=device),)


def experts_with_a_capacity(device):
    gate = nn.Linear(8, 4, device=device)
    w = torch.randn(4, 8, 8, device=device)

    def route(x):
        probabilities = gate(x).softmax(-1)
        top, expert = probabilities.max(-1)
        onehot = functional.one_hot(expert, 4)
        position = (onehot.cumsum(0) - 1).gather(1, expert[:, None]).squeeze(1)
        keep = position < 6
        slot = torch.where(keep, expert * 6 + position, 24)
        buffers = x.new_zeros(25, 8).index_copy(0, slot, x)
        out = torch.bmm(buffers[:24].view(4, 6, 8), w).view(24, 8)
        out = torch.cat([out, out.new_zeros(1, 8)])
        return out[slot] * top[:, None]

    return route, (torch.randn(16, 8, device=device),)


def load_balance_by_bincount(device):
    gate = nn.Linear(8, 4, device=device)

    def auxiliary(x):
        probabilities = gate(x).softmax(-1)
        chosen = probabilities.argmax(-1)
        share = torch.bincount(chosen, minlength=4) / chosen.numel()  # guilty: asks for the maximum
        return 4 * (share * probabilities.mean(0)).sum()

    return auxiliary, (torch.randn(16, 8, device=device),)


class GrowingCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.past = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.past is not None:
            k = torch.cat([self.past[0], k], 1)  # guilty: one token longer each time
            v = torch.cat([self.past[1], v], 1)  # guilty: likewise
        self.past = (k.detach(), v.detach())  # guilty: no replay keeps a longer one
        return functional.scaled_dot_product_attention(q, k, v)


def cache_grows(device):
    return GrowingCache().to(device).eval().requires_grad_(False), (
        torch.randn(2, 1, 8, device=device),
    )


class SlidingCache(nn.Module):
    """The last four tokens, moved along in place."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(2, 4, 8))
        self.register_buffer("values", torch.zeros(2, 4, 8))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        for cache, new in ((self.keys, k), (self.values, v)):
            cache.copy_(torch.cat([cache[:, 1:], new], 1))
        return functional.scaled_dot_product_attention(q, self.keys, self.values)


def cache_slides(device):
    return SlidingCache().to(device).eval().requires_grad_(False), (
        torch.randn(2, 1, 8, device=device),
    )


def cache_sliced_by_a_device_length(device):
    cache = torch.randn(1, 16, 8, device=device)
    length = torch.tensor(5, device=device)

    @torch.no_grad()
    def attend(q):
        keys = cache[:, :length]  # guilty: a bound on the device
        return functional.scaled_dot_product_attention(q, keys, keys)

    return attend, (torch.randn(1, 1, 8, device=device),)


def cache_masked_by_a_device_length(device):
    cache = torch.randn(1, 16, 8, device=device)
    length = torch.tensor(5, device=device)

    @torch.no_grad()
    def attend(q):
        mask = torch.arange(cache.shape[1], device=device) < length
        length.add_(1).clamp_(max=16)
        return functional.scaled_dot_product_attention(
            q, cache, cache, attn_mask=mask[None, None, :][0]
        )

    return attend, (torch.randn(1, 1, 8, device=device),)


def beams_reordered_by_a_list(device):
    head = nn.Linear(8, 11, device=device)
    hidden = torch.randn(3, 8, device=device)

    @torch.no_grad()
    def advance():
        scores = head(hidden).log_softmax(-1)
        _, flat = scores.view(-1).topk(3)
        parents = [index // 11 for index in flat.tolist()]  # guilty: a list of device values
        hidden.copy_(torch.stack([hidden[p] for p in parents]))
        return flat % 11

    return advance


def beams_reordered_by_gather(device):
    head = nn.Linear(8, 11, device=device)
    hidden = torch.randn(3, 8, device=device)
    scores = torch.zeros(3, 1, device=device)

    @torch.no_grad()
    def advance():
        total = scores + head(hidden).log_softmax(-1)
        best, flat = total.view(-1).topk(3)
        parents = torch.div(flat, 11, rounding_mode="floor")
        hidden.copy_(hidden.index_select(0, parents).tanh())
        scores.copy_(best[:, None])
        return flat.remainder(11)

    return advance


def generates_until_all_are_done(device):
    embed, head = nn.Embedding(11, 8, device=device), nn.Linear(8, 11, device=device)

    @torch.no_grad()
    def generate(token):
        done = torch.zeros_like(token, dtype=torch.bool)
        for _ in range(4):
            token = head(embed(token)).argmax(-1)
            done |= token == 0
            if done.all():  # guilty: the host asks whether all have ended
                break
        return token

    return generate, (torch.randint(11, (4,), device=device),)


def generates_with_padding(device):
    embed, head = nn.Embedding(11, 8, device=device), nn.Linear(8, 11, device=device)

    @torch.no_grad()
    def generate(token):
        done = torch.zeros_like(token, dtype=torch.bool)
        tokens = []
        for _ in range(4):
            token = torch.where(done, 0, head(embed(token)).argmax(-1))
            done = done | (token == 0)
            tokens.append(token)
        return torch.stack(tokens, 1)

    return generate, (torch.randint(11, (4,), device=device),)


def categorical_policy(device):
    body = nn.Linear(6, 3, device=device)

    def act(observation):
        policy = torch.distributions.Categorical(logits=body(observation))  # guilty: it validates
        action = policy.sample()  # guilty: multinomial asks whether the weights are valid
        return action, policy.log_prob(action)

    return act, (torch.randn(16, 6, device=device),)


def gaussian_policy(device):
    body = nn.Linear(6, 4, device=device)

    def act(observation):
        mean, log_std = body(observation).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
        action = policy.rsample()
        return action.tanh(), policy.log_prob(action).sum(-1), policy.entropy().sum(-1)

    return act, (torch.randn(16, 6, device=device),)


def gaussian_policy_that_validates(device):
    body = nn.Linear(6, 4, device=device)

    def act(observation):
        mean, log_std = body(observation).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.exp())  # guilty: it validates
        return policy.mean

    return act, (torch.randn(16, 6, device=device),)


def divergence_of_two_gaussians(device):
    encoder = nn.Linear(6, 8, device=device)
    zeros, ones = torch.zeros(4, device=device), torch.ones(4, device=device)
    prior = torch.distributions.Independent(torch.distributions.Normal(zeros, ones), 1)

    def vae(x):
        mean, raw = encoder(x).chunk(2, -1)
        base = torch.distributions.Normal(
            mean, functional.softplus(raw) + 1e-4, validate_args=False
        )
        posterior = torch.distributions.Independent(base, 1, validate_args=False)
        z = posterior.rsample()
        return z, torch.distributions.kl_divergence(posterior, prior).mean()

    return vae, (torch.randn(16, 6, device=device),)


def gumbel_choice(device):
    codebook = torch.randn(10, 8, device=device)
    project = nn.Linear(6, 10, device=device)

    def quantise(x):
        onehot = functional.gumbel_softmax(project(x), tau=0.7, hard=True)
        return onehot @ codebook

    return quantise, (torch.randn(16, 6, device=device),)


class VectorQuantizer(nn.Module):
    """Codes that nobody used for a while are replaced."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(10, 6))
        self.register_buffer("usage", torch.zeros(10))

    def forward(self, x):
        index = torch.cdist(x, self.codes).argmin(-1)
        self.usage.mul_(0.9).index_add_(0, index, torch.ones_like(index, dtype=torch.float))
        dead = self.usage < 0.01
        self.codes[dead] = x[: int(dead.sum())]  # guilty: a mask and a number of the device
        return self.codes[index]


def dead_codes_are_replaced(device):
    return VectorQuantizer().to(device), (torch.randn(16, 6, device=device),)


class InPlaceQuantizer(VectorQuantizer):
    def forward(self, x):
        index = torch.cdist(x, self.codes).argmin(-1)
        self.usage.mul_(0.9).index_add_(0, index, torch.ones_like(index, dtype=torch.float))
        dead = (self.usage < 0.01)[:, None]
        pick = torch.randint(x.shape[0], (10,), device=x.device)
        self.codes.copy_(torch.where(dead, x[pick], self.codes))
        return self.codes[index]


def dead_codes_by_where(device):
    return InPlaceQuantizer().to(device), (torch.randn(16, 6, device=device),)


def dynamic_int8_with_a_float(device):
    weight = torch.randn(8, 8, device=device)

    @torch.no_grad()
    def linear(x):
        scale = float(x.abs().amax()) / 127  # guilty: the scale is read
        return (x / scale).round().clamp(-128, 127).mul(scale) @ weight.t()

    return linear, (torch.randn(4, 8, device=device),)


def dynamic_int8_on_the_device(device):
    weight = torch.randn(8, 8, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    @torch.no_grad()
    def linear(x):
        scale = (x.abs().amax() / 127)[None]
        x = torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)
        return x @ weight.t()

    return linear, (torch.randn(4, 8, device=device),)


def observer_of_quantization(device):
    observer = torch.ao.quantization.MinMaxObserver().to(device)
    layer = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def calibrate(x):
        observer(x)
        return layer(x)

    return calibrate, (torch.randn(4, 8, device=device),)
