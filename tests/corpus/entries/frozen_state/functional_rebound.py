import torch
from torch import nn


# functional params rebound in a dict each step
def functional_rebound(device):
    model = nn.Linear(4, 1).to(device)
    state = {"params": {k: v.detach().clone() for k, v in model.named_parameters()}}

    def loss(p, x):
        return torch.func.functional_call(model, p, (x,)).square().mean()

    def step(x):
        grads = torch.func.grad(loss)(state["params"], x)  # <- metadata-address-changed
        state["params"] = {
            k: p - 0.1 * grads[k] for k, p in state["params"].items()
        }  # <- metadata-address-changed
        return state["params"]["weight"].clone()

    return step, (torch.randn(4, 4, device=device),)
