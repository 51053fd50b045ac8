"""Caches of inference code: pages, windows, embeddings of a prompt, workspaces."""

import math

import torch
from torch import nn
from torch.nn import functional


class PagedCache:
    """Pages are a list of Python, and so is the place of the next token."""

    def __init__(self, pages, size, width, device):
        self.pages = [torch.zeros(size, width, device=device) for _ in range(pages)]
        self.size, self.length = size, 0

    def append(self, row):
        page = self.pages[self.length // self.size % len(self.pages)]
        page[self.length % self.size].copy_(row)  # guilty: always the row of the capture
        self.length += 1  # guilty: counts only when Python runs


def decode_into_python_pages(device):
    project = nn.Linear(8, 8).to(device).requires_grad_(False)
    cache = PagedCache(4, 4, 8, device)

    def decode(token):
        row = project(token)
        cache.append(row)
        keys = torch.cat(cache.pages)
        return (row @ keys.t() / math.sqrt(8)).softmax(-1) @ keys

    return decode, (torch.randn(8, device=device),)


class StaticCache(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.project = nn.Linear(width, 3 * width).requires_grad_(False)
        self.register_buffer("k", torch.zeros(1, length, width))
        self.register_buffer("v", torch.zeros(1, length, width))
        self.register_buffer("places", torch.arange(length))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))

    def forward(self, token):
        q, k, v = self.project(token).chunk(3, -1)
        place = self.position % self.k.shape[1]
        self.k.index_copy_(1, place, k)
        self.v.index_copy_(1, place, v)
        seen = self.places <= self.position
        out = functional.scaled_dot_product_attention(
            q, self.k, self.v, attn_mask=seen.view(1, 1, -1)
        )
        self.position += 1
        return out


def decode_with_a_position_on_the_device(device):
    return StaticCache(16, 8).to(device), (torch.randn(1, 1, 8, device=device),)


class PromptConditioned(nn.Module):
    """Encodes the prompt again only if somebody has written to it."""

    def __init__(self):
        super().__init__()
        self.encode, self.denoise = nn.Linear(6, 8), nn.Linear(8, 8)
        self.version, self.encoded = None, None

    @torch.no_grad()
    def forward(self, latent, prompt):
        if prompt._version != self.version:  # guilty: decided at capture
            self.encoded = self.encode(prompt).relu()  # guilty: missing in the graph
            self.version = prompt._version
        return self.denoise(latent) + self.encoded  # guilty: of the prompt at capture


def prompt_encoding_kept_by_version(device):
    inputs = torch.randn(3, 8, device=device), torch.randn(3, 6, device=device)
    return PromptConditioned().to(device), inputs


class RotaryTable(nn.Module):
    """The table grows with the longest sequence, which does not change after warm-up."""

    def __init__(self, width):
        super().__init__()
        self.width, self.longest, self.table = width, 0, None

    def forward(self, x):
        length = x.shape[1]
        if length > self.longest:
            rates = 10000.0 ** (-torch.arange(0, self.width, 2, device=x.device) / self.width)
            angles = torch.outer(torch.arange(length, device=x.device), rates)
            self.table, self.longest = torch.polar(torch.ones_like(angles), angles), length
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.table[:length]).flatten(-2)


def rotary_table_grown_in_warm_up(device):
    return RotaryTable(8).to(device), (torch.randn(2, 5, 8, device=device),)


def workspace_by_shape(device):
    """A buffer for each shape, written as a whole before it is read."""
    weight = torch.randn(8, 16, device=device)
    workspaces = {}

    def project(x):
        shape = (x.shape[0], weight.shape[1])
        if shape not in workspaces:
            workspaces[shape] = torch.empty(shape, device=x.device)
        hidden = torch.mm(x, weight, out=workspaces[shape])
        return hidden.relu_().sum(-1)

    return project, (torch.randn(4, 8, device=device),)


def nucleus_sampling_by_exponentials(device):
    head = nn.Linear(8, 32).to(device).requires_grad_(False)

    def sample(hidden):
        values, order = (head(hidden) / 0.8).softmax(-1).sort(-1, descending=True)
        values[values.cumsum(-1) - values > 0.9] = 0
        drawn = (values / torch.empty_like(values).exponential_(1)).argmax(-1, keepdim=True)
        return order.gather(-1, drawn)

    return sample, (torch.randn(3, 8, device=device),)
