"""Numbers of PyTorch's modules that the captured code did not use."""

import torch
from torch import nn

x = torch.randn(4, 8, 6, device="cuda")


def replay(module, *args):
    module(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(*args)
    graph.replay()
    yield
    graph.replay()
    print(type(result))


attention = nn.MultiheadAttention(6, 2, dropout=0.1).eval().cuda()
for _ in replay(attention, x, x, x):
    attention.dropout = 0.2

training = nn.MultiheadAttention(6, 2, dropout=0.0).train().cuda()
for _ in replay(training, x, x, x):
    training.batch_first = False

for norm in (nn.BatchNorm1d(8), nn.InstanceNorm1d(8, track_running_stats=True)):
    norm = norm.cuda().eval()
    for _ in replay(norm, x):
        norm.momentum = 0.02

plain = nn.InstanceNorm1d(8)
for _ in replay(plain, x):
    plain.momentum = 0.3

drop = nn.Sequential(nn.Dropout(0.3), nn.Dropout1d(0.4), nn.AlphaDropout(0.2), nn.GELU()).eval()
for _ in replay(drop, x):
    for each in drop[:3]:
        each.p = 0.0

rows = nn.Embedding(10, 4).cuda()
for _ in replay(rows, torch.randint(0, 10, (3,), device="cuda")):
    rows.norm_type = 1.0
    rows.num_embeddings = 9
