import torch


def gradients_of_each_sample(device):
    weight = torch.randn(8, 2, device=device)

    def loss(weight, x):
        return (x @ weight).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    data = torch.randn(4, 8, device=device)

    @torch.no_grad()
    def step():
        grads = each(weight, data)
        norms = grads.flatten(1).norm(dim=1)
        clipped = grads * (1 / norms).clamp(max=1)[:, None, None]
        weight.sub_(0.01 * (clipped.mean(0) + 0.1 * torch.randn_like(weight)))

    return step
