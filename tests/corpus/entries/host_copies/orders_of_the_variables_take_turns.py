import numpy
import torch
from torch import nn
from torch.nn import functional


class MaskedAutoregressor(nn.Module):
    """MADE that trains with several orders: each call goes on to the masks of the next one."""

    def __init__(self, inputs=10, hidden=32, orders=4):
        super().__init__()
        self.inputs, self.hidden, self.orders, self.seed = inputs, hidden, orders, 0
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, inputs)
        self.register_buffer("mask_in", torch.ones(hidden, inputs))
        self.register_buffer("mask_out", torch.ones(inputs, hidden))

    def update_masks(self):
        random = numpy.random.RandomState(self.seed)
        self.seed = (self.seed + 1) % self.orders
        order = random.permutation(self.inputs)
        degrees = random.randint(order.min(), self.inputs - 1, size=self.hidden)
        inner = (order[None, :] <= degrees[:, None]).astype(numpy.float32)
        outer = (degrees[None, :] < order[:, None]).astype(numpy.float32)
        self.mask_in.copy_(torch.from_numpy(inner))  # <- h2d-pageable-copy
        self.mask_out.copy_(torch.from_numpy(outer))  # <- h2d-pageable-copy

    def forward(self, x):
        self.update_masks()
        hidden = functional.linear(x, self.first.weight * self.mask_in, self.first.bias).relu()
        return functional.linear(hidden, self.second.weight * self.mask_out, self.second.bias)


def orders_of_the_variables_take_turns(device):
    torch.manual_seed(0)
    model = MaskedAutoregressor().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = (torch.rand(16, 10, device=device) > 0.5).float()

    def step():
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    return step
