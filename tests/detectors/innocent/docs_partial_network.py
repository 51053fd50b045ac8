"""Partial-network capture as PyTorch's documentation shows it, with an eager middle."""

from itertools import chain

import torch

module1 = torch.nn.Linear(16, 12).cuda()
module2 = torch.nn.Linear(12, 8).cuda()
module3 = torch.nn.Linear(12, 8).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(
    chain(module1.parameters(), module2.parameters(), module3.parameters()), lr=0.1
)
x = torch.randn(4, 16, device="cuda")
h = torch.randn(4, 12, device="cuda", requires_grad=True)
module1 = torch.cuda.make_graphed_callables(module1, (x,))
module2 = torch.cuda.make_graphed_callables(module2, (h,))
module3 = torch.cuda.make_graphed_callables(module3, (h,))

for _ in range(4):
    data, target = torch.rand_like(x), torch.randn(4, 8, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    tmp = module1(data)
    tmp = module2(tmp) if tmp.sum().item() > 0 else module3(tmp)
    loss = loss_fn(tmp, target)
    loss.backward()
    optimizer.step()
