import torch
from torch import nn


def speculative_accept_on_device(device):
    draft = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).to(device)
    target = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).to(device)
    tokens = torch.randint(100, (3, 5), device=device)

    @torch.inference_mode()
    def verify_draft(tokens):
        p = target(tokens).softmax(-1)
        q = draft(tokens).softmax(-1)
        proposed = torch.multinomial(q.flatten(0, 1), 1).view_as(tokens)
        ratio = (p / q).gather(-1, proposed[..., None]).squeeze(-1)
        agree = torch.rand_like(ratio) < ratio.clamp(max=1.0)
        accepted = agree.long().cumprod(-1).sum(-1)
        residual = (p - q).clamp(min=0)
        at = accepted.clamp(max=4)[:, None, None].expand(-1, 1, 100)
        dist = residual.gather(1, at).squeeze(1) + 1e-9
        bonus = torch.multinomial(dist / dist.sum(-1, keepdim=True), 1)
        keep = torch.arange(5, device=tokens.device)[None] < accepted[:, None]
        return torch.where(keep, proposed, -1), bonus, accepted

    return verify_draft, (tokens,)
