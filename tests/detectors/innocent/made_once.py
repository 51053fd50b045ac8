"""What captured code makes at its first call and does not change, or fills in each call."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

x, prompt = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")


class Mask:
    mask = None

    def __call__(self, x):
        if self.mask is None or self.mask.shape[0] != x.shape[0]:
            self.mask = torch.ones(4, 4, device="cuda").tril()
        return self.mask @ x


class Workspace:
    space = None

    def __call__(self, x):
        if self.space is None:
            self.space = torch.empty_like(x)
        self.space.copy_(x)
        return self.space.add_(1)


class Prompt:
    encoded = None

    def __call__(self, x):
        if self.encoded is None:
            self.encoded = prompt.tanh()
        return x + self.encoded


class Memo:
    """The script takes what was made away before each call."""

    made = None

    def __call__(self, x):
        if self.made is None:
            self.made = x.tanh()
        return x + self.made


class Last:
    last = None

    def __call__(self, x):
        if self.last is None:
            print("the first call")
        y = x.tanh()
        assert self.last is None or self.last.shape == y.shape
        self.last = y
        return self.last * 2


class Switched:
    """What was made is read only if a switch says so."""

    is_frozen, made = False, None

    def __call__(self, x):
        if self.is_frozen:
            return self.made
        self.made = x.tanh()
        return self.made * 2


class Total:
    """Each call begins with none."""

    total = None

    def __call__(self, x):
        self.total = None
        for power in (1, 2, 3):
            self.total = x**power if self.total is None else self.total + x**power
        return self.total


class Collecting:
    def __init__(self):
        self.collected = {}

    def __call__(self, x):
        if self.collected is not None:
            self.collected["mean"] = x.mean()
        return x * 2


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.transposed = nn.Linear(4, 4), None

    def forward(self, x):
        if self.transposed is None:
            self.transposed = self.linear.weight.detach().t().contiguous()
        return x @ self.transposed


memo = Memo()
kinds = [Mask, Workspace, Prompt, Last, Switched, Total, Collecting]
functions = [*(kind() for kind in kinds), memo, Transposed().cuda()]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outputs = [function(x) for function in functions]
for number in range(3):
    x.fill_(number)
    memo.made = None
    graph.replay()
print([output.sum().item() for output in outputs])
