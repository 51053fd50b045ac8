"""torch.func transforms with random numbers, forward mode, TorchScript."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional


def noise_of_each_row(device):
    weight = torch.randn(4, 4, device=device)

    def one(row):
        return torch.dropout(row @ weight, 0.3, True) + torch.randn_like(row)

    def forward(x):
        return torch.vmap(one, randomness="different")(x)

    return forward, (torch.randn(6, 4, device=device),)


def same_dropout_for_all_rows(device):
    def forward(x):
        return torch.vmap(lambda row: functional.dropout(row, 0.3) * 2, randomness="same")(x)

    return forward, (torch.randn(6, 4, device=device),)


def gradient_through_dropout(device):
    weight = torch.randn(4, 4, device=device)

    def loss(weight, x):
        return functional.dropout(x @ weight, 0.2).square().mean()

    def forward(x):
        return torch.func.grad(loss)(weight, x)

    return forward, (torch.randn(6, 4, device=device),)


def gumbel_choice_of_each_row(device):
    def forward(x):
        return torch.vmap(functional.gumbel_softmax, randomness="different")(x)

    return forward, (torch.randn(6, 4, device=device),)


def noise_of_each_row_from_the_host(device):
    def one(row):
        noise = torch.randn(4)  # guilty: every replay has that of the capture
        return row + noise.to(row.device)  # guilty: copied from pageable memory

    def forward(x):
        return torch.vmap(one, randomness="different")(x)

    return forward, (torch.randn(6, 4, device=device),)


def gradient_through_a_mask_from_the_host(device):
    weight = torch.randn(4, 4, device=device)

    def loss(weight, x):
        mask = torch.ones(6, 4)
        return (x @ weight * mask.to(x.device)).sum()  # guilty: copied from pageable memory

    def forward(x):
        return torch.func.grad(loss)(weight, x)

    return forward, (torch.randn(6, 4, device=device),)


def directional_derivative(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to(device).requires_grad_(False)

    def forward(x, direction):
        return torch.func.jvp(model, (x,), (direction,))[1]

    return forward, (torch.randn(2, 4, device=device), torch.randn(2, 4, device=device))


def dual_numbers(device):
    weight = torch.randn(4, 4, device=device)

    def forward(x, direction):
        with forward_ad.dual_level():
            dual = torch.sin(forward_ad.make_dual(x, direction) @ weight)
            return forward_ad.unpack_dual(dual).tangent.clone()

    return forward, (torch.randn(2, 4, device=device), torch.randn(2, 4, device=device))


def hessian_times_vector(device):
    weight = torch.randn(5, 5, device=device)

    def energy(x):
        return torch.tanh(weight @ x).square().sum()

    def forward(x, direction):
        return torch.func.jvp(torch.func.grad(energy), (x,), (direction,))[1]

    return forward, (torch.randn(5, device=device), torch.randn(5, device=device))


def scripted_recurrence(device):
    @torch.jit.script
    def scan(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros([x.size(0)], dtype=x.dtype, device=x.device)
        for step in range(x.size(1)):
            state = torch.tanh(state * 0.5 + x[:, step])
        return state

    def forward(x):
        return scan(x)

    return forward, (torch.randn(3, 4, device=device),)


def scripted_ramp(device):
    @torch.jit.script
    def ramp(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.size(-1), device=x.device)
        return x + steps * torch.full([1], 0.5, device=x.device)

    def forward(x):
        return ramp(x)

    return forward, (torch.randn(3, 4, device=device),)


def scripted_clamp_by_the_mean(device):
    @torch.jit.script
    def clamp(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=float(x.mean()))

    def forward(x):
        return clamp(x)  # guilty: float() of a tensor

    return forward, (torch.randn(3, 4, device=device),)
