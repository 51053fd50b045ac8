# /// script
# dependencies = [
#     "lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0", "tqdm", "pyyaml",
#     "packaging", "fsspec", "aiohttp", "numpy",
# ]
# [tool.field]
# package = "lightning"
# version = "2.6.6"
# ///
"""`Fabric` with a model of which `make_graphed_callables` has captured forward and backward."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(0)
data = torch.randn(128, 8)
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=16)
fabric = L.Fabric(accelerator="cuda", devices=1)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
net = torch.cuda.make_graphed_callables(net, (torch.randn(16, 8, device="cuda"),))
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.05))
for x, target in fabric.setup_dataloaders(loader):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), target)
    fabric.backward(loss)
    optimizer.step()
    print("fabric", round(float(loss), 4))
