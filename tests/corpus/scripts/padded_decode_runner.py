"""A runner in the manner of serving engines: the batch is padded, every buffer is copied."""

import bisect
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class ForwardBatch:
    input_ids: torch.Tensor
    positions: torch.Tensor
    seq_lens: torch.Tensor
    batch_size: int


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.place = nn.Embedding(64, width)
        self.head = nn.Linear(width, 32)

    def forward(self, batch):
        hidden = self.embed(batch.input_ids) + self.place(batch.positions)
        return self.head(hidden) / batch.seq_lens[:, None]


class Runner:
    def __init__(self, model, capture_bs):
        self.model, self.capture_bs = model, sorted(capture_bs)
        most = self.capture_bs[-1]
        self.input_ids = torch.zeros(most, dtype=torch.long, device="cuda")
        self.positions = torch.zeros(most, dtype=torch.long, device="cuda")
        self.seq_lens = torch.ones(most, dtype=torch.long, device="cuda")
        self.graphs, self.outputs, self.pool = {}, {}, None
        for bs in reversed(self.capture_bs):
            self.graphs[bs], self.outputs[bs] = self.capture(bs)

    @torch.inference_mode()
    def capture(self, bs):
        batch = ForwardBatch(self.input_ids[:bs], self.positions[:bs], self.seq_lens[:bs], bs)
        for _ in range(2):
            torch.cuda.synchronize()
            self.model(batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            out = self.model(batch)
        self.pool = graph.pool()
        return graph, out

    @torch.inference_mode()
    def replay(self, batch):
        raw = batch.batch_size
        bs = self.capture_bs[bisect.bisect_left(self.capture_bs, raw)]
        if bs != raw:
            self.seq_lens.fill_(1)
            self.positions.zero_()
            self.input_ids.zero_()
        self.input_ids[:raw].copy_(batch.input_ids)
        self.positions[:raw].copy_(batch.positions)
        self.seq_lens[:raw].copy_(batch.seq_lens)
        self.graphs[bs].replay()
        return self.outputs[bs][:raw]


runner = Runner(Model().cuda().eval(), [1, 2, 4])
for raw in (3, 1, 2, 4):
    ids = torch.randint(32, (raw,), device="cuda")
    lens = torch.full((raw,), 5, device="cuda")
    logits = runner.replay(ForwardBatch(ids, lens - 1, lens, raw))
    print(raw, logits.argmax(-1).tolist())
