import torch
from torch import nn
from torch.nn import functional


def ragged_rows_through_a_layer(device):
    layer, norm = nn.Linear(6, 6).to(device), nn.LayerNorm(6).to(device)
    offsets = torch.tensor([0, 3, 4, 9], device=device)

    @torch.no_grad()
    def f(values):
        # The lengths are given, so nothing reads the offsets.
        ragged = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=5)
        return (functional.silu(layer(ragged)) * 2).values() + norm(values)

    return f, (torch.randn(9, 6, device=device),)
