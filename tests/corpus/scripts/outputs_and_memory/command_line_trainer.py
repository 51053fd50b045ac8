"""A trainer with arguments: a loader on the host, static inputs, a log line now and then."""

import argparse
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("trainer")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args([])


def main():
    options = arguments()
    torch.manual_seed(0)
    inputs = torch.randn(50, 6)
    loader = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True)), options.batch_size, drop_last=True
    )
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, capturable=True)
    x = torch.zeros(options.batch_size, 6, device="cuda")
    y = torch.zeros(options.batch_size, 1, device="cuda")

    def train_step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.huber_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train_step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train_step()

    step, total = 0, torch.zeros((), device="cuda")
    for epoch in range(options.epochs):
        for rows, targets in loader:
            x.copy_(rows)
            y.copy_(targets)
            graph.replay()
            total += loss
            step += 1
            if step % options.log_every == 0:
                log.warning("epoch %d step %d loss %.4f", epoch, step, total.item() / step)


if __name__ == "__main__":
    main()
