# /// script
# dependencies = [
#     "accelerate==1.15.0", "safetensors==0.8.0", "huggingface-hub==1.32.0", "httpx", "httpcore",
#     "h11", "anyio", "idna", "certifi", "sniffio", "hf-xet", "filelock", "fsspec", "tqdm",
#     "typer", "packaging", "psutil", "pyyaml", "numpy",
# ]
# [tool.field]
# package = "accelerate"
# version = "1.15.0"
# ///
"""`Accelerator` with bf16: forward and `accelerator.backward` in a graph, the step outside."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
WARMUP = 3
accelerator = Accelerator(mixed_precision="bf16")
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
data = torch.randn(160, 8)
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=16)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
x = torch.zeros(16, 8, device=accelerator.device)
target = torch.zeros(16, 1, device=accelerator.device)


def forward_backward():
    with accelerator.autocast():
        loss = nn.functional.mse_loss(net(x).float(), target)
    accelerator.backward(loss)
    return loss.detach()


graph, stream = None, torch.cuda.Stream()
for index, (batch, label) in enumerate(loader):
    x.copy_(batch)
    target.copy_(label)
    if index < WARMUP:
        optimizer.zero_grad()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = forward_backward()
        torch.cuda.current_stream().wait_stream(stream)
    else:
        if graph is None:
            optimizer.zero_grad()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = forward_backward()
        graph.replay()
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(index, round(float(loss), 4), scheduler.get_last_lr())
