import torch
from torch._higher_order_ops.while_loop import while_loop


def loops_while_a_tensor_says_so(device):
    def forward(x):
        def goes_on(count, _):
            return count < 5

        def improve(count, root):
            return count + 1, (root + x / root) / 2

        start = torch.zeros((), dtype=torch.int64, device=x.device), torch.ones_like(x)
        return while_loop(goes_on, improve, start)[1]  # <- conditional-node-limits

    return forward, (torch.rand(4, device=device) + 1,)
