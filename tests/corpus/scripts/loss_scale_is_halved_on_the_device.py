"""The loss scale lives on the device; the host looks at overflows only now and then."""

import torch
from torch import nn
from torch.nn import functional


class LossScale:
    def __init__(self, value):
        self.value = torch.full((), value, device="cuda")
        self.found_inf = torch.zeros((), device="cuda")

    def unscale_(self, grads):
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, self.found_inf, self.value.reciprocal()
        )

    def update(self):
        if self.found_inf.item() > 0:
            self.value.mul_(0.5)
        else:
            self.value.mul_(2.0).clamp_(max=2.0**14)
        self.found_inf.zero_()


model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).cuda()
scale = LossScale(2.0**10)
x, y = torch.zeros(4, 8, device="cuda"), torch.zeros(4, 8, device="cuda")


def step():
    for parameter in model.parameters():
        parameter.grad = None
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        loss = functional.mse_loss(model(x).float(), y)
    (loss * scale.value).backward()
    scale.unscale_([each.grad for each in model.parameters()])
    with torch.no_grad():
        good = (scale.found_inf == 0).to(torch.float32)
        for parameter in model.parameters():
            update = torch.nan_to_num(parameter.grad, posinf=0.0, neginf=0.0)
            parameter.sub_(0.05 * good * update)
    return loss.detach()


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

for number in range(12):
    x.copy_(torch.randn(4, 8))
    y.copy_(x.roll(1, 1))
    graph.replay()
    if number % 4 == 3:
        scale.update()
        print(number, loss.item(), scale.value.item())
