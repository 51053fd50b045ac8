# /// script
# dependencies = [
#     "nvidia-physicsnemo==2.2.2", "tensordict==0.15.3", "pyvers==0.2.3", "cloudpickle==3.1.3",
#     "requests", "urllib3", "charset-normalizer", "idna", "certifi", "tqdm", "numpy", "packaging",
#     "fsspec", "pandas", "python-dateutil", "six", "termcolor", "importlib-metadata", "zipp",
# ]
# [tool.field]
# package = "nvidia-physicsnemo"
# version = "2.2.2"
# [[tool.field.true]]
# code = "gradients-unscaled-twice"
# file = "physicsnemo/utils/capture.py"
# function = "decorated"
# ///
"""`StaticCaptureTraining` with a gradient scaler and clipping, and `StaticCaptureEvaluateNoGrad`.

The captured `_amp_forward` calls `scaler.unscale_`, which notes on the host that the gradients are
unscaled. A replay notes nothing, so `scaler.step` (not captured) unscales them again from the
second replay on.
"""

from unused import leave_out

leave_out("s3fs", "treelib", "warp")

import torch
from physicsnemo.core import Module
from physicsnemo.core.meta import ModelMetaData
from physicsnemo.distributed import DistributedManager
from physicsnemo.utils.capture import StaticCaptureEvaluateNoGrad, StaticCaptureTraining
from torch import nn

torch.manual_seed(0)


class Net(Module):
    def __init__(self):
        super().__init__(meta=ModelMetaData(cuda_graphs=True, amp_gpu=True))
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


DistributedManager.initialize()
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.zeros(32, 8, device="cuda")
target = torch.zeros(32, 1, device="cuda")


@StaticCaptureTraining(
    model=net, optim=optimizer, cuda_graph_warmup=3, gradient_clip_norm=1.0, label="train"
)
def train(x, target):
    return (net(x) - target).square().mean()


@StaticCaptureEvaluateNoGrad(model=net, cuda_graph_warmup=3, use_amp=False, label="evaluate")
def evaluate(x):
    return net(x)


for _ in range(8):
    batch = torch.randn(32, 8, device="cuda")
    x.copy_(batch)
    target.copy_(batch.sum(1, keepdim=True))
    print(f"{float(train(x, target)):.4f} {float(evaluate(x).mean()):.4f}")
