"""Transformers-style decoding with static caches."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, length=32):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        shape = (1, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def split(self, x):
        parts = self.qkv(x).chunk(3, -1)
        return [each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts]

    def forward(self, x, position):
        q, k, v = self.split(x)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mask = torch.arange(self.keys.shape[2], device=x.device) <= position
        y = functional.scaled_dot_product_attention(
            q, self.keys, self.values, mask[None, None, None]
        )
        return self.out(y.transpose(1, 2).flatten(2))


def _decoder(device, attention=Attention):
    embedding = nn.Embedding(64, 16)
    head = nn.Linear(16, 64)
    return embedding.to(device), attention().to(device), head.to(device)


def static_cache_device_position(device):
    embedding, attention, head = _decoder(device)
    position = torch.zeros(1, dtype=torch.long, device=device)

    @torch.no_grad()
    def decode(token):
        logits = head(attention(embedding(token), position))
        position.add_(1).remainder_(32)
        return logits.argmax(-1)

    return decode, (torch.zeros(1, 1, dtype=torch.long, device=device),)


def static_cache_python_position(device):
    embedding, attention, head = _decoder(device)
    state = {"position": 0}

    @torch.no_grad()
    def decode(token):
        q, k, v = attention.split(embedding(token))
        at = state["position"] % 32
        attention.keys[:, :, at] = k[:, :, 0]  # guilty: every replay writes the same slot
        attention.values[:, :, at] = v[:, :, 0]  # guilty: every replay writes the same slot
        state["position"] += 1  # guilty: counted on the host
        y = functional.scaled_dot_product_attention(q, attention.keys, attention.values)
        return head(attention.out(y.transpose(1, 2).flatten(2)))

    return decode, (torch.zeros(1, 1, dtype=torch.long, device=device),)


def growing_cache(device):
    embedding, attention, head = _decoder(device)
    cache = {}

    @torch.no_grad()
    def decode(token):
        q, k, v = attention.split(embedding(token))
        if "k" in cache:
            k = torch.cat([cache["k"], k], 2)  # guilty: the cache grows with every token
            v = torch.cat([cache["v"], v], 2)  # guilty: the cache grows with every token
        cache.update(k=k[:, :, -16:], v=v[:, :, -16:])  # guilty: replays do not update the dict
        y = functional.scaled_dot_product_attention(q, k, v)
        return head(attention.out(y.transpose(1, 2).flatten(2)))

    return decode, (torch.zeros(1, 1, dtype=torch.long, device=device),)


def sliding_window_in_place(device):
    embedding, attention, head = _decoder(device)

    @torch.no_grad()
    def decode(token):
        q, k, v = attention.split(embedding(token))
        for cache, new in ((attention.keys, k), (attention.values, v)):
            cache.copy_(torch.cat([cache[:, :, 1:], new], 2))
        y = functional.scaled_dot_product_attention(q, attention.keys, attention.values)
        return head(attention.out(y.transpose(1, 2).flatten(2)))

    return decode, (torch.zeros(1, 1, dtype=torch.long, device=device),)


def samples_with_temperature(device):
    embedding, attention, head = _decoder(device)

    @torch.no_grad()
    def decode(token, position):
        logits = head(attention(embedding(token), position))[:, -1] / 0.8
        top, index = logits.topk(8)
        choice = torch.multinomial(top.softmax(-1), 1)
        return index.gather(1, choice)

    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    return decode, (token, torch.full((1,), 3, device=device))


def nucleus_sampling(device):
    head = nn.Linear(16, 64, device=device)

    @torch.no_grad()
    def sample(hidden):
        p, index = head(hidden).softmax(-1).sort(descending=True)
        p = p.masked_fill(p.cumsum(-1) - p > 0.9, 0.0)
        return index.gather(-1, torch.multinomial(p, 1))

    return sample, (torch.randn(2, 16, device=device),)


def nucleus_with_boolean_index(device):
    head = nn.Linear(16, 64, device=device)

    @torch.no_grad()
    def sample(hidden):
        p, index = head(hidden).softmax(-1).sort(descending=True)
        kept = p[p.cumsum(-1) < 0.9]  # guilty: its size depends on the values
        return kept.sum() + index[0, 0]

    return sample, (torch.randn(2, 16, device=device),)


def stops_at_the_end_token(device):
    embedding, attention, head = _decoder(device)

    @torch.no_grad()
    def decode(token, position):
        done = torch.zeros(1, dtype=torch.bool, device=device)
        for _ in range(4):
            token = head(attention(embedding(token), position)).argmax(-1)
            position.add_(1)
            done |= token[:, 0] == 2
            if done.all():  # guilty: the loop ends by a value of the device
                break
        return token

    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    return decode, (token, torch.zeros(1, dtype=torch.long, device=device))


def pads_after_the_end_token(device):
    embedding, attention, head = _decoder(device)

    @torch.no_grad()
    def decode(token, position):
        done = torch.zeros(1, 1, dtype=torch.bool, device=device)
        for _ in range(4):
            token = head(attention(embedding(token), position)).argmax(-1)
            token = token.masked_fill(done, 0)
            done |= token == 2
        return token

    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    return decode, (token, torch.zeros(1, dtype=torch.long, device=device))


def repetition_penalty(device):
    def penalise(logits, seen):
        score = logits.gather(1, seen)
        score = torch.where(score < 0, score * 1.2, score / 1.2)
        return logits.scatter(1, seen, score)

    return penalise, (torch.randn(2, 64, device=device), torch.randint(64, (2, 8), device=device))


def repetition_penalty_by_set(device):
    def penalise(logits, seen):
        for token in set(seen[0].tolist()):  # guilty: the tokens are read on the host
            logits[0, token] /= 1.2
        return logits * 1.0

    return penalise, (torch.randn(1, 64, device=device), torch.randint(64, (1, 8), device=device))


def rotary_by_table(device):
    angles = torch.outer(torch.arange(32.0), 10000 ** (-torch.arange(0, 8, 2) / 8)).to(device)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotate(x, position):
        half = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * cos[position] + half * sin[position]

    x = torch.randn(2, 8, device=device)
    return rotate, (x, torch.tensor([3, 5], device=device))


def rotary_recomputed_for_longer_text(device):
    inverse = (10000 ** (-torch.arange(0, 8, 2) / 8)).to(device)
    table = {"length": 0, "cos": None}

    def rotate(x, position):
        longest = int(position.max()) + 1  # guilty: the length is read on the host
        if longest > table["length"]:
            table["cos"] = torch.outer(torch.arange(longest, device=device).float(), inverse).cos()
            table["length"] = longest
        return x * table["cos"][position].repeat(1, 2)

    x = torch.randn(2, 8, device=device)
    return rotate, (x, torch.tensor([3, 5], device=device))


def speculative_acceptance(device):
    def accept(draft, target, tokens):
        p = target.softmax(-1).gather(-1, tokens[..., None])[..., 0]
        q = draft.softmax(-1).gather(-1, tokens[..., None])[..., 0]
        keep = torch.rand_like(p) < p / q
        count = keep.long().cumprod(-1).sum(-1)
        return torch.where(torch.arange(4, device=p.device) < count[:, None], tokens, -1)

    shape = (2, 4, 16)
    logits = torch.randn(shape, device=device), torch.randn(shape, device=device)
    return accept, (*logits, torch.randint(16, (2, 4), device=device))


def speculative_acceptance_on_host(device):
    def accept(draft, target, tokens):
        p = target.softmax(-1).gather(-1, tokens[..., None])[..., 0]
        q = draft.softmax(-1).gather(-1, tokens[..., None])[..., 0]
        keep = p > q
        first = keep.long().argmin(-1)
        return tokens[0, : first[0] + 1]  # guilty: a slice that ends at a tensor

    shape = (2, 4, 16)
    logits = torch.randn(shape, device=device), torch.randn(shape, device=device)
    return accept, (*logits, torch.randint(16, (2, 4), device=device))


def beam_search_step(device):
    def extend(scores, logits):
        total = scores[:, None] + logits.log_softmax(-1)
        best, flat = total.flatten().topk(4)
        return best, flat // logits.shape[-1], flat % logits.shape[-1]

    return extend, (torch.zeros(4, device=device), torch.randn(4, 32, device=device))


def causal_mask_from_the_host(device):
    projection = nn.Linear(8, 8, device=device)

    def attend(x):
        mask = torch.full((6, 6), float("-inf")).triu(1)
        scores = projection(x) @ x.mT
        return (scores + mask.to(device)).softmax(-1) @ x  # guilty: a pageable copy at every call

    return attend, (torch.randn(2, 6, 8, device=device),)


def causal_mask_made_on_device(device):
    projection = nn.Linear(8, 8, device=device)

    def attend(x):
        mask = torch.full((6, 6), float("-inf"), device=x.device).triu(1)
        scores = projection(x) @ x.mT
        return (scores + mask).softmax(-1) @ x

    return attend, (torch.randn(2, 6, 8, device=device),)


def next_token_goes_into_the_argument(device):
    """Token and length are state of the caller: each call reads them, and then updates them."""
    embedding, cell = nn.Embedding(16, 8, device=device), nn.GRUCell(8, 8).to(device)
    hidden = torch.zeros(2, 8, device=device)

    @torch.no_grad()
    def step(token, lengths):
        hidden.copy_(cell(embedding(token), hidden))
        scores = hidden @ embedding.weight.t() / (1 + lengths[:, None])
        token.copy_(scores.argmax(-1))
        lengths.add_(1)
        return scores

    return step, (
        torch.zeros(2, dtype=torch.long, device=device),
        torch.zeros(2, dtype=torch.long, device=device),
    )
