# /// script
# dependencies = [
#     "nemo-toolkit==3.0.0", "lightning==2.6.6", "pytorch-lightning==2.6.6",
#     "lightning-utilities==0.15.3", "torchmetrics==1.9.0", "tqdm", "pyyaml", "packaging",
#     "fsspec", "aiohttp", "numpy",
# ]
# [tool.field]
# package = "nemo-toolkit"
# version = "3.0.0"
# [[tool.field.true]]
# code = "unsynchronized-io"
# file = "nemo/utils/callbacks/cuda_graph.py"
# function = "__iter__"
# ///
"""`CUDAGraphCallback`: whole training steps of a Lightning trainer in one graph.

`StaticBufferLoader.__iter__` copies the next batch on a stream of its own, which never waits for
the replay that still reads the static buffers. Only the module of the callback is imported.
"""

import warnings

from unused import without_init

without_init("nemo", "utils", "utils.callbacks")

import lightning.pytorch as pl
import torch
from nemo.utils.callbacks.cuda_graph import CUDAGraphCallback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
STEPS, CAPTURE = 18, 12


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.losses = []

    def training_step(self, batch):
        x, target = batch
        return {"loss": (self.layers(x) - target).square().mean()}

    def on_train_batch_end(self, outputs, batch, index):
        self.losses.append(outputs["loss"].clone())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2, capturable=True)


pl.seed_everything(0)
x = torch.randn(STEPS * 16, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, collate_fn=None)
trainer = pl.Trainer(
    accelerator="gpu",
    devices=1,
    max_steps=STEPS,
    callbacks=[CUDAGraphCallback(capture_iteration=CAPTURE)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
net = Net()
trainer.fit(net, loader)
print(torch.stack(net.losses).tolist())
