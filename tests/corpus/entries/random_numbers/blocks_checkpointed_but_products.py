import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)


def _keep_products(context, op, *args, **kwargs):
    keep = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def blocks_checkpointed_but_products(device):
    block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    block.to(device)
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)

    def step(x):
        block.zero_grad()
        y = x + checkpoint(
            block, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
        loss = y.square().mean()
        loss.backward()
        return loss

    return step, (torch.randn(4, 8, device=device),)
