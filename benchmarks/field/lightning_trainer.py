# /// script
# dependencies = [
#     "lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0", "tqdm", "pyyaml",
#     "packaging", "fsspec", "aiohttp", "numpy",
# ]
# [tool.field]
# package = "lightning"
# version = "2.6.6"
# ///
"""A module with manual optimization, which captures its forward and backward, in a `Trainer`."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(0)
data = torch.randn(128, 8)
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=16)


class Module(L.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.graph, self.losses = None, []

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2, capturable=True)

    def on_fit_start(self):
        self.x = torch.zeros(16, 8, device=self.device)
        self.target = torch.zeros(16, 1, device=self.device)
        self.loss = torch.zeros((), device=self.device)
        self.stream = torch.cuda.Stream()

    def forward_backward(self):
        loss = nn.functional.mse_loss(self.net(self.x), self.target)
        self.manual_backward(loss)
        self.loss.copy_(loss.detach())

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        self.x.copy_(batch[0])
        self.target.copy_(batch[1])
        if index < 3:
            optimizer.zero_grad()
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.forward_backward()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.graph is None:
                optimizer.zero_grad()
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self.forward_backward()
            self.graph.replay()
        optimizer.step()
        self.losses.append(self.loss.clone())


quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, enable_model_summary=False, **quiet)
module = Module()
trainer.fit(module, loader)
print("trainer", torch.stack(module.losses).tolist())
