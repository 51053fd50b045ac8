# /// script
# dependencies = ["tensordict==0.15.3", "pyvers==0.2.3", "cloudpickle==3.1.3", "numpy"]
# [tool.field]
# package = "tensordict"
# version = "0.15.3"
# ///
"""`CudaGraphModule`: a function of tensors, a policy on tensordicts, and a whole training step."""

import torch
from tensordict import TensorDict
from tensordict.nn import CudaGraphModule, TensorDictModule, TensorDictSequential
from torch import nn

torch.manual_seed(0)


def tensors():
    layer = nn.Linear(8, 8, device="cuda")

    @torch.no_grad()
    def mix(x, y, scale):
        return {"sum": layer(x + y) * scale, "max": torch.maximum(x, y)}

    graphed = CudaGraphModule(mix, warmup=3)
    for step in range(6):
        x = torch.randn(4, 8, device="cuda")
        out = graphed(x, torch.full_like(x, step), 0.5)
        expected = mix(x, torch.full_like(x, step), 0.5)
        torch.testing.assert_close(out["sum"], expected["sum"])


def policy():
    first = TensorDictModule(nn.Linear(8, 16, device="cuda"), in_keys=["obs"], out_keys=["hidden"])
    second = TensorDictModule(
        nn.Linear(16, 2, device="cuda"), in_keys=["hidden"], out_keys=["action"]
    )
    graphed = CudaGraphModule(TensorDictSequential(first, second))
    with torch.no_grad():
        for _ in range(6):
            td = TensorDict(obs=torch.randn(4, 8, device="cuda"), batch_size=[4], device="cuda")
            td = graphed(td)
            torch.testing.assert_close(td["action"], second.module(first.module(td["obs"])))


def training():
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)

    def update(x, y):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    graphed = CudaGraphModule(update, warmup=4)
    losses = []
    for _ in range(12):
        x = torch.randn(32, 8, device="cuda")
        losses.append(graphed(x, x.sum(1, keepdim=True)))
    print("loss", torch.stack(losses).tolist())


tensors()
policy()
training()
