from __future__ import annotations

import torch


# A scale for each token, computed on the device, and a product of small integers.
def activations_quantized_by_token(device):
    weight = torch.randn(16, 8, device=device)
    w_scale = weight.abs().amax(1, keepdim=True) / 127
    w_int = (weight / w_scale).round().to(torch.int8)

    @torch.no_grad()
    def forward(x):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        q = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return (q.float() @ w_int.float().t()) * scale * w_scale.t()

    return forward, (torch.randn(4, 8, device=device),)
