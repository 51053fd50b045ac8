"""Layers, samplers and front ends of models that only infer."""

import functools
import itertools
import math
import zlib
from collections import namedtuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

# --- samplers and processors of logits


class StaticCache:
    """Positions are a tensor; the length is also known on the host, as a courtesy."""

    def __init__(self, device, length=128, width=8):
        self.keys = torch.zeros(length, width, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self._seen = 0

    def get_seq_length(self):
        return self._seen

    def update(self, key):
        self.keys.index_copy_(0, self.position, key)
        self.position.add_(1).remainder_(len(self.keys))
        self._seen += key.shape[0]  # guilty: counted on the host
        return self.keys


class DecayingLengthPenalty:
    def __init__(self, start, factor, end):
        self.start, self.factor, self.end = start, factor, end

    def __call__(self, length, scores):
        if length > self.start:  # guilty: the length at capture
            over = length - self.start
            bonus = scores[:, self.end].abs() * (self.factor**over - 1)  # guilty: same
            scores = scores.clone()
            scores[:, self.end] += bonus
        return scores


def penalty_by_the_length_that_a_cache_reports(device):
    torch.manual_seed(0)
    cache = StaticCache(device)
    head = nn.Linear(8, 12).to(device)
    penalty = DecayingLengthPenalty(start=2, factor=1.05, end=3)

    @torch.no_grad()
    def decode(hidden):
        keys = cache.update(hidden)
        attended = (hidden @ keys.T).softmax(-1) @ keys
        scores = penalty(cache.get_seq_length(), head(attended))  # guilty: the length at capture
        return scores.softmax(-1)

    return decode, (torch.randn(1, 8, device=device),)


def filter_is_skipped_if_no_request_wants_it(device):
    torch.manual_seed(0)

    @torch.inference_mode()
    def sample(logits, min_ps):
        probs = logits.softmax(-1)
        if any(p > 0 for p in min_ps):  # guilty: compares numbers of the device
            floor = min_ps[:, None] * probs.amax(-1, keepdim=True)
            probs = probs.masked_fill(probs < floor, 0.0)
        return probs / probs.sum(-1, keepdim=True)

    return sample, (
        torch.randn(3, 16, device=device),
        torch.tensor([0.0, 0.1, 0.05], device=device),
    )


def top_k_of_each_request(device):
    torch.manual_seed(0)

    @torch.inference_mode()
    def sample(logits, ks):
        ordered, index = logits.sort(-1, descending=True)
        kth = ordered.gather(-1, (ks - 1).clamp(min=0)[:, None])
        ordered = ordered.masked_fill((ordered < kth) & (ks > 0)[:, None], -torch.inf)
        choice = torch.multinomial(ordered.softmax(-1), 1)
        return index.gather(-1, choice)[:, 0]

    return sample, (
        torch.randn(3, 16, device=device),
        torch.tensor([1, 0, 5], device=device),
    )


def locally_typical_tokens(device):
    torch.manual_seed(0)

    def sample(logits, mass=0.9):
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).nansum(-1, keepdim=True)
        surprise = (-logp - entropy).abs()
        order = surprise.argsort(-1)
        cumulated = logp.gather(-1, order).exp().cumsum(-1)
        last = (cumulated < mass).sum(-1, keepdim=True).clamp_(max=logits.shape[-1] - 1)
        limit = surprise.gather(-1, order).gather(-1, last)
        kept = logits.masked_fill(surprise > limit, -math.inf)
        return (kept.softmax(-1) / torch.empty_like(kept).exponential_()).argmax(-1)

    return torch.no_grad()(sample), (torch.randn(3, 16, device=device),)


def noise_from_a_hash_of_seed_and_position(device):
    """The same request draws the same tokens, whatever else is in the batch."""
    torch.manual_seed(0)
    vocabulary = torch.arange(32, device=device)

    def uniform(seeds, positions):
        x = (seeds * 0x9E3779B1 + positions * 0x85EBCA6B) & 0xFFFFFFFF
        x = x[:, None] ^ (vocabulary * 0xC2B2AE35 & 0xFFFFFFFF)
        x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
        x = ((x ^ (x >> 12)) * 0x297A2D39) & 0xFFFFFFFF
        return ((x ^ (x >> 15)).double() + 0.5) / 2**32

    positions = torch.zeros(3, dtype=torch.long, device=device)

    @torch.no_grad()
    def sample(logits, seeds):
        gumbel = -(-uniform(seeds, positions).log()).log()
        token = (logits.double() + gumbel).argmax(-1)
        positions.add_(1)
        return token

    return sample, (
        torch.randn(3, 32, device=device),
        torch.tensor([7, 8, 9], device=device),
    )


def repeated_ngrams_are_banned_on_the_device(device):
    torch.manual_seed(0)
    n = 3

    @torch.no_grad()
    def process(ids, logits):
        grams = ids.unfold(1, n, 1)
        same = (grams[..., :-1] == ids[:, None, 1 - n :]).all(-1)
        banned = torch.zeros_like(logits).scatter_add_(1, grams[..., -1], same.to(logits.dtype))
        return torch.where(banned > 0, -math.inf, logits)

    return process, (
        torch.randint(4, (2, 12), device=device),
        torch.randn(2, 8, device=device),
    )


Request = namedtuple("Request", "logit_bias stop temperature")


def biases_of_constant_requests(device):
    torch.manual_seed(0)
    requests = (
        Request({3: 1.5, 7: -2.0}, (0,), 0.7),
        Request({}, (0, 2), 0.0),
        Request({1: -math.inf}, (), 1.2),
    )

    @torch.no_grad()
    def sample(logits):
        tokens = []
        for row, request in zip(logits.unbind(0), requests, strict=True):
            row = row.clone()
            for token, bias in request.logit_bias.items():
                row[token : token + 1] += bias
            for token in request.stop:
                row[token].fill_(-math.inf)
            match request.temperature:
                case 0.0:
                    tokens.append(row.argmax(-1))
                case value:
                    tokens.append(torch.multinomial((row / value).softmax(-1), 1)[0])
        return torch.stack(tokens)

    return sample, (torch.randn(3, 10, device=device),)


class PatientExits(nn.Module):
    """Stops when two layers in a row agree."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.exits = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))

    @torch.inference_mode()
    def forward(self, x):
        before, logits = None, None
        for layer, exit_ in zip(self.layers, self.exits, strict=True):
            x = layer(x).relu()
            logits = exit_(x)
            label = logits.argmax(-1)
            if before is not None and (label == before).all():  # guilty: the truth of a tensor
                break
            before = label
        return logits


def leaves_when_two_layers_agree(device):
    torch.manual_seed(0)
    return PatientExits().to(device).eval(), (torch.randn(2, 8, device=device),)


# --- embeddings and rerankers


class Unpadded(nn.Module):
    """Computes only the tokens that are not padding."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    @torch.no_grad()
    def forward(self, hidden, mask):
        b, t, d = hidden.shape
        lengths = mask.sum(-1, dtype=torch.int32)
        offsets = functional.pad(lengths.cumsum(0), (1, 0))
        kept = torch.nonzero(mask.flatten(), as_tuple=False).flatten()  # guilty: how many
        packed = hidden.reshape(b * t, d).index_select(0, kept)
        packed = self.mlp(packed)
        padded = hidden.new_zeros(b * t, d).index_copy(0, kept, packed)
        return padded.view(b, t, d).sum(1) / offsets.diff()[:, None]


def tokens_without_padding(device):
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], device=device)
    return Unpadded().to(device), (torch.randn(2, 4, 8, device=device), mask)


def nested_embedding_sizes_by_a_range(device):
    torch.manual_seed(0)
    model = nn.Linear(6, 32).to(device)

    @torch.no_grad()
    def embed(x):
        full = model(x)
        sampled = full[:, range(0, 32, 4)]  # guilty: the indices are copied from the host
        return functional.normalize(sampled, dim=-1)

    return embed, (torch.randn(3, 6, device=device),)


def late_interaction_scores(device):
    torch.manual_seed(0)
    project = nn.Linear(8, 4, bias=False).to(device)

    @torch.no_grad()
    def rerank(query, documents, lengths):
        q = functional.normalize(project(query), dim=-1)
        d = functional.normalize(project(documents), dim=-1)
        padding = torch.arange(d.shape[1], device=d.device) >= lengths[:, None]
        similarity = torch.einsum("qe,nte->nqt", q, d)
        similarity = similarity.masked_fill(padding[:, None], -1.0)
        return similarity.amax(-1).sum(-1).sort(descending=True)

    return rerank, (
        torch.randn(3, 8, device=device),
        torch.randn(5, 6, 8, device=device),
        torch.tensor([6, 2, 4, 5, 1], device=device),
    )


def hidden_states_are_tapped_for_a_draft(device):
    """A draft head reads three layers of the target."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))).to(device)
    fuse = nn.Linear(24, 8).to(device)
    taps = []
    for index in (1, len(layers) // 2, -1):
        layers[index].register_forward_hook(lambda _module, _args, out: taps.append(out))

    @torch.no_grad()
    def draft(x):
        taps.clear()
        logits = layers(x)
        return logits, fuse(torch.cat(taps, -1))

    return draft, (torch.randn(2, 8, device=device),)


# --- vision


class PatchPositions(nn.Module):
    """Rotary positions of images with grids of their own."""

    def __init__(self, width=8):
        super().__init__()
        self.register_buffer("inverse", 100.0 ** -torch.linspace(0, 1, width // 2))

    @torch.no_grad()
    def forward(self, patches, grid_thw):
        places = []
        for t, h, w in grid_thw:  # guilty: the sizes are on the device
            rows = torch.arange(h, device=patches.device)  # guilty: reads a size
            columns = torch.arange(w, device=patches.device)  # guilty: reads a size
            grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
            places.append(grid.reshape(-1, 2).repeat(int(t), 1))  # guilty: reads a size
        angles = torch.cat(places).float()[..., None] * self.inverse
        return patches * angles.flatten(1).cos()


def patches_of_grids_on_the_device(device):
    torch.manual_seed(0)
    grid = torch.tensor([[1, 2, 3], [2, 2, 2]], device=device)
    return PatchPositions().to(device), (torch.randn(14, 8, device=device), grid)


@functools.lru_cache(maxsize=1)
def _window_mask(side, window, device):
    index = torch.arange(side * side, device=device)
    y, x = index // side // window, index % side // window
    return (y[:, None] == y) & (x[:, None] == x)


def window_masks_push_each_other_out(device):
    """Two stages with a mask each, and a cache that holds one."""
    torch.manual_seed(0)
    stages = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)).to(device)

    @torch.no_grad()
    def encode(x):
        for stage, (side, window) in zip(stages, ((4, 2), (2, 1)), strict=True):
            mask = _window_mask(side, window, x.device)
            q = stage(x)
            x = functional.scaled_dot_product_attention(q, x, x, attn_mask=mask)
            if side > 2:
                x = x.unflatten(1, (2, 2, 2, 2)).mean((2, 4)).flatten(1, 2)
        return x

    return encode, (torch.randn(2, 16, 8, device=device),)


def deformable_attention_over_levels(device):
    torch.manual_seed(0)
    shapes = ((4, 4), (2, 2))
    offsets = nn.Linear(8, 2 * len(shapes) * 3).to(device)
    weights = nn.Linear(8, len(shapes) * 3).to(device)

    @torch.no_grad()
    def attend(query, memory, reference):
        b, n, d = query.shape
        where = offsets(query).view(b, n, len(shapes), 3, 2)
        weight = weights(query).softmax(-1).view(b, 1, n, len(shapes) * 3)
        sampled = []
        for level, ((h, w), value) in enumerate(
            zip(shapes, memory.split([h * w for h, w in shapes], 1), strict=True)
        ):
            size = torch.full((2,), float(w), device=query.device)
            grid = 2 * (reference[:, :, None] + where[:, :, level] / size) - 1
            value = value.mT.reshape(b, d, h, w)
            sampled.append(functional.grid_sample(value, grid, align_corners=False))
        return (torch.cat(sampled, -1) * weight).sum(-1).mT

    return attend, (
        torch.randn(2, 5, 8, device=device),
        torch.randn(2, 20, 8, device=device),
        torch.rand(2, 5, 2, device=device),
    )


def image_is_decoded_in_tiles(device):
    torch.manual_seed(0)
    decoder = nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1).to(device)
    tile, step = 6, 4

    @torch.no_grad()
    def decode(z):
        _, _, h, w = z.shape
        out = z.new_zeros(z.shape[0], 3, 2 * h, 2 * w)
        total = torch.zeros_like(out)
        ramp = torch.linspace(0.1, 1, tile, device=z.device)
        fade = torch.minimum(ramp, ramp.flip(0)).repeat_interleave(2)
        fade = fade[:, None] * fade
        for top in range(0, h - tile + 1, step):
            for left in range(0, w - tile + 1, step):
                part = decoder(z[:, :, top : top + tile, left : left + tile])
                area = (..., slice(2 * top, 2 * (top + tile)), slice(2 * left, 2 * (left + tile)))
                out[area] += part * fade
                total[area] += fade
        return out / total

    return decode, (torch.randn(1, 4, 10, 10, device=device),)


class CachedDenoiser:
    """Reuses the residual of the blocks while the input has changed little."""

    def __init__(self, device, threshold=0.15):
        self.blocks = nn.Linear(8, 8).to(device)
        self.threshold = threshold
        self.before = torch.ones(2, 8, device=device)
        self.residual = torch.zeros(2, 8, device=device)
        self.distance = torch.zeros((), device=device)

    @torch.no_grad()
    def __call__(self, x):
        change = (x - self.before).abs().mean() / self.before.abs().mean()
        self.distance += change
        self.before.copy_(x)
        if self.distance < self.threshold:  # guilty: the distance is on the device
            return x + self.residual
        self.distance.zero_()
        self.residual.copy_(self.blocks(x).tanh())
        return x + self.residual


def residual_is_reused_below_a_distance(device):
    torch.manual_seed(0)
    return CachedDenoiser(device), (torch.randn(2, 8, device=device),)


def guidance_only_in_an_interval(device):
    torch.manual_seed(0)
    model = nn.Linear(9, 8).to(device)
    sigmas = [10.0, 4.0, 1.5, 0.5, 0.1, 0.0]

    @torch.no_grad()
    def denoise(x, condition):
        for now, after in itertools.pairwise(sigmas):
            level = x.new_full((len(x), 1), math.log(now) / 4)
            uncond = model(torch.cat([x / (1 + now), level], -1))
            if 0.3 < now <= 5.0:
                cond = model(torch.cat([(x + condition) / (1 + now), level], -1))
                uncond = torch.lerp(uncond, cond, 3.0)
            x = x + (x - uncond) / now * (after - now)
        return x

    return denoise, (torch.randn(2, 8, device=device), torch.randn(2, 8, device=device))


# --- speech


class FallbackDecoder(nn.Module):
    """Decodes again with a higher temperature if the text repeats itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 32)

    @torch.no_grad()
    def forward(self, audio):
        tokens = None
        for temperature in (0.0, 0.4, 0.8):
            logits = self.head(audio)
            if temperature == 0.0:
                tokens = logits.argmax(-1)
            else:
                tokens = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]
            text = bytes(tokens.tolist())  # guilty: the tokens are read on the host
            if len(text) / len(zlib.compress(text)) < 2.4:
                break
        return tokens


def transcript_that_repeats_is_decoded_again(device):
    torch.manual_seed(0)
    return FallbackDecoder().to(device), (torch.randn(12, 8, device=device),)


def silence_before_speech_is_cut(device):
    torch.manual_seed(0)
    encoder = nn.Conv1d(1, 4, 4).to(device)

    @torch.no_grad()
    def encode(wave):
        energy = wave.unfold(-1, 4, 4).square().mean((0, 2))
        start = (energy > 0.1).long().argmax() * 4
        speech = wave.narrow(1, start, 16)  # guilty: the start is on the device
        return encoder(speech[:, None]).relu()

    wave = torch.randn(2, 48)
    wave[:, :12] *= 0.01
    return encode, (wave.to(device),)


class CrossAttention(nn.Module):
    """Keys and values of the encoder are computed once for an utterance."""

    def __init__(self, width=8):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.is_updated = False

    def forward(self, x, encoded):
        if not self.is_updated:
            self.keys, self.values = self.k(encoded), self.v(encoded)
            self.is_updated = True
        return functional.scaled_dot_product_attention(self.q(x), self.keys, self.values)


def encoder_is_attended_with_kept_keys(device):
    torch.manual_seed(0)
    attention = CrossAttention().to(device).eval()
    encoded = torch.randn(1, 20, 8, device=device)

    @torch.inference_mode()
    def decode(x):
        return attention(x, encoded)

    return decode, (torch.randn(1, 3, 8, device=device),)


_basis, _window = {}, {}


def _mel(size, bands, device):
    frequency = torch.linspace(0, 1, size // 2 + 1, device=device)
    centers = torch.linspace(0, 1, bands + 2, device=device)[1:-1, None]
    return (1 - (frequency - centers).abs() * bands).clamp(min=0)


def spectrogram_with_bases_kept_by_name(device):
    torch.manual_seed(0)

    def spectrogram(y, size=16, bands=5):
        key = f"{bands}_{y.device}"
        if key not in _basis:
            _basis[key] = _mel(size, bands, y.device)
            _window[str(y.device)] = torch.hann_window(size, device=y.device)
        y = functional.pad(y[:, None], (4, 4), mode="reflect")[:, 0]
        frames = y.unfold(-1, size, 8) * _window[str(y.device)]
        power = torch.fft.rfft(frames).abs()
        return (power @ _basis[key].T).clamp(min=1e-5).log()

    return spectrogram, (torch.randn(2, 64, device=device),)


class OverlapAdd(nn.Module):
    """Chunks of speech overlap; the end of one is added to the begin of the next."""

    def __init__(self, overlap=4):
        super().__init__()
        self.vocoder = nn.Linear(6, 16)
        self.overlap = overlap
        self.register_buffer("tail", torch.zeros(2, overlap), persistent=False)

    @torch.no_grad()
    def forward(self, mel):
        wave = self.vocoder(mel).tanh()
        head = wave[:, : self.overlap] + self.tail  # guilty: reads the tail at capture
        self.register_buffer(  # guilty: the next chunk reads another tensor
            "tail",
            wave[:, -self.overlap :].clone(),
            persistent=False,
        )
        return torch.cat([head, wave[:, self.overlap : -self.overlap]], 1)


def end_of_a_chunk_is_registered_again(device):
    torch.manual_seed(0)
    return OverlapAdd().to(device), (torch.randn(2, 6, device=device),)


def phonemes_fill_a_fixed_length(device):
    torch.manual_seed(0)
    frames = 20

    @torch.no_grad()
    def regulate(hidden, durations):
        ends = durations.cumsum(-1)
        places = torch.arange(frames, device=hidden.device).expand(len(hidden), -1).contiguous()
        index = torch.searchsorted(ends, places, right=True)
        valid = index < hidden.shape[1]
        index = index.clamp(max=hidden.shape[1] - 1)
        out = hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
        return out * valid[..., None]

    return regulate, (
        torch.randn(2, 5, 4, device=device),
        torch.randint(1, 5, (2, 5), device=device),
    )


def sound_coded_by_residual_codebooks(device):
    torch.manual_seed(0)
    books = nn.ParameterList(torch.randn(16, 6) / (level + 1) for level in range(4)).to(device)

    @torch.no_grad()
    def code(x):
        rest, codes = x, []
        for book in books:
            nearest = torch.cdist(rest, book).argmin(-1)
            codes.append(nearest)
            rest = rest - functional.embedding(nearest, book)
        return x - rest, torch.stack(codes, -1)

    return code, (torch.randn(3, 6, device=device),)


# --- recurrent and sparse layers


class InferenceParams:
    def __init__(self):
        self.key_value_memory_dict = {}
        self.seqlen_offset = 0


class SelectiveScan(nn.Module):
    def __init__(self, width=6, state=4, taps=3):
        super().__init__()
        self.conv = nn.Parameter(torch.randn(width, taps) / taps)
        self.rate = nn.Parameter(torch.rand(width, state))
        self.mix = nn.Linear(width, 2 * state)

    def forward(self, x, params):
        state = params.key_value_memory_dict.get(0)
        if state is None:
            state = (x.new_zeros(*x.shape, 3), x.new_zeros(*x.shape, self.rate.shape[1]))
        conv, scan = state
        conv = torch.cat([conv[..., 1:], x[..., None]], -1)  # guilty: reads the one at capture
        u = (conv * self.conv).sum(-1)
        b, c = self.mix(u).chunk(2, -1)
        scan = scan * (-self.rate).exp() + u[..., None] * b[:, None]
        params.key_value_memory_dict[0] = (conv, scan)  # guilty: the next call reads other tensors
        return (scan * c[:, None]).sum(-1)


def scan_keeps_a_pair_by_its_layer(device):
    torch.manual_seed(0)
    params = InferenceParams()
    layer = SelectiveScan().to(device)

    @torch.no_grad()
    def step(x):
        y = layer(x, params)
        params.seqlen_offset += 1
        return y

    return step, (torch.randn(2, 6, device=device),)


class Retention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.gammas = [1 - 2.0 ** (-5 - head) for head in range(heads)]
        self.register_buffer("states", torch.zeros(heads, 2, width // heads, width // heads))

    @torch.no_grad()
    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        outputs = []
        for head, gamma in enumerate(self.gammas):
            state = self.states[head]
            state *= gamma
            state += k[:, head, :, None] * v[:, head, None]
            outputs.append(torch.einsum("bd,bde->be", q[:, head], state))
        return torch.cat(outputs, -1)


def retention_of_one_token(device):
    torch.manual_seed(0)
    return Retention().to(device), (torch.randn(2, 8, device=device),)


def depth_of_the_most_important_tokens(device):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).to(device)
    router = nn.Linear(8, 1).to(device)
    capacity = 3

    @torch.no_grad()
    def forward(x):
        weight, index = router(x)[..., 0].topk(capacity, -1, sorted=False)
        index = index.sort(-1).values[..., None].expand(-1, -1, x.shape[-1])
        picked = x.gather(1, index)
        return x.scatter_add(1, index, block(picked) * weight[..., None].sigmoid())

    return forward, (torch.randn(2, 10, 8, device=device),)


# --- quantized layers

CODE = (-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0)
CODE += (0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0)


class CodebookLinear(nn.Module):
    """The code is a plain attribute, so that `.to(device)` does not move it."""

    def __init__(self, rows=4, columns=8):
        super().__init__()
        self.register_buffer("packed", torch.randint(256, (rows, columns // 2), dtype=torch.uint8))
        self.register_buffer("absmax", torch.rand(rows, 1))
        self.code = torch.tensor(CODE)

    @torch.no_grad()
    def forward(self, x):
        index = torch.stack([self.packed >> 4, self.packed & 15], -1).flatten(1).long()
        code = self.code.to(x.device, non_blocking=True)  # guilty: copied from pageable memory
        return x @ (code[index] * self.absmax).T


def code_is_not_a_buffer(device):
    torch.manual_seed(0)
    return CodebookLinear().to(device), (torch.randn(2, 8, device=device),)


class ActOrderLinear(nn.Module):
    """The order of the columns came from a NumPy file."""

    def __init__(self, width=8):
        super().__init__()
        self.order = np.random.default_rng(0).permutation(width)
        self.register_buffer("weight", torch.randint(-7, 8, (4, width)).to(torch.int8))
        self.register_buffer("scales", torch.rand(4, 1))

    @torch.no_grad()
    def forward(self, x):
        x = x[..., self.order]  # guilty: the indices are copied from the host
        return x @ (self.weight * self.scales).T


def order_of_the_columns_in_an_array(device):
    torch.manual_seed(0)
    return ActOrderLinear().to(device), (torch.randn(2, 8, device=device),)


class TernaryLinear(nn.Linear):
    def forward(self, x):
        scale = self.weight.abs().mean().clamp(min=1e-5)
        weight = (self.weight / scale).round().clamp(-1, 1) * scale
        peak = x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        quantized = (x * 127 / peak).round().clamp(-128, 127) * peak / 127
        return functional.linear(quantized, weight, self.bias)


def weights_of_three_values(device):
    torch.manual_seed(0)
    model = nn.Sequential(TernaryLinear(8, 16), nn.ReLU(), TernaryLinear(16, 4)).to(device)
    return torch.no_grad()(model), (torch.randn(2, 8, device=device),)


class BitPlanes(nn.Module):
    """One file holds weights of two to four bits; the precision is chosen when it is loaded."""

    def __init__(self, bits=3, rows=4, columns=8):
        super().__init__()
        self.bits = bits
        self.register_buffer("planes", torch.randint(2, (4, rows, columns), dtype=torch.uint8))
        self.register_buffer("tables", torch.randn(rows, 2**bits).sort(-1).values)

    @torch.no_grad()
    def forward(self, x):
        code = torch.zeros_like(self.planes[0])
        for plane in self.planes[: self.bits].unbind(0):
            code = code << 1 | plane
        return x @ self.tables.gather(1, code.long()).T


def precision_by_planes_of_bits(device):
    torch.manual_seed(0)
    return BitPlanes().to(device), (torch.randn(2, 8, device=device),)


class UnpackedOnce(nn.Module):
    """Unpacks its weight in the first call and forgets the packed one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.randint(-8, 8, (4, 8), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(4, 1))

    def post_load(self):
        self.register_buffer("weight", self.packed * self.scale)
        del self.packed

    @torch.inference_mode()
    def forward(self, x):
        if hasattr(self, "packed"):
            self.post_load()
        return x @ self.weight.T


def packed_weight_is_deleted_after_use(device):
    torch.manual_seed(0)
    return UnpackedOnce().to(device), (torch.randn(2, 8, device=device),)


class DelayedScaling(nn.Module):
    """The scale of the activations is the largest of the last four maxima."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("maxima", torch.ones(4))

    @torch.no_grad()
    def forward(self, x):
        scale = self.maxima.amax() / 7
        y = self.fc((x / scale).round().clamp(-8, 7) * scale)
        newest = x.abs().amax()[None]
        self.maxima = torch.cat([newest, self.maxima[:-1]])  # guilty: a tensor that is not read
        return y


def maxima_are_joined_anew(device):
    torch.manual_seed(0)
    return DelayedScaling().to(device), (torch.randn(2, 8, device=device),)


def residual_is_added_in_place(device):
    """A fused kernel returns the normalized sum and leaves the sum in the residual."""
    torch.manual_seed(0)
    weight = torch.rand(8, device=device)

    def fused_add_rms_norm(x, residual):
        residual.add_(x)
        x.copy_(functional.rms_norm(residual, (8,), weight))

    embed = nn.Embedding(16, 8).to(device)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)).to(device)

    @torch.no_grad()
    def forward(tokens):
        residual = embed(tokens)
        x = functional.rms_norm(residual, (8,), weight)
        for layer in layers:
            x = layer(x)
            fused_add_rms_norm(x, residual)
        return x, residual

    return forward, (torch.randint(16, (3,), device=device),)
