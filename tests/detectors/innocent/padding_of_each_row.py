"""Rows are copied one by one, and what is behind them is reset, masked, or read by no real element;
or other rows are in use. Smaller graphs read only what their batch fills."""

import torch
from torch import nn

torch.manual_seed(0)
warm = torch.ones(2, 2, device="cuda")
print((warm @ warm).sum().item())  # makes the handle of cuBLAS, which a capture must not
ROWS, TIME = 4, 8
embed = nn.Embedding(50, 8).cuda()
encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda().eval()
causal = torch.triu(torch.full((TIME, TIME), float("-inf"), device="cuda"), 1)
places = torch.arange(TIME, device="cuda")


def rows_of(dtype=torch.int64):
    return torch.zeros(ROWS, TIME, dtype=dtype, device="cuda")


def captured(step):
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def serve():
    reset, ended, told, masked, read = (rows_of() for _ in range(5))
    mask = rows_of(torch.float32)
    lengths = torch.zeros(ROWS, dtype=torch.int64, device="cuda")

    def step():
        behind = (places >= lengths[:, None])[..., None]
        return (
            embed(reset).mean(1) + embed(ended).amax(1),
            embed(told).masked_fill(behind, 0).sum(1) / lengths[:, None],
            (embed(masked) * mask[..., None]).sum(1),
        )

    def read_in_part():
        return (
            encoder(embed(read), src_mask=causal),
            embed(read).relu().transpose(0, 1).contiguous(),
            embed(read).flatten(0, 1).argmax(-1),
        )

    graph, (pooled, mean, total) = captured(step)
    other, (hidden, by_time, best) = captured(read_in_part)
    for counts in ([8, 6, 5, 7], [3, 2, 5, 4], [6, 1, 2, 8]):
        reset.zero_()
        mask.zero_()
        for row, count in enumerate(counts):
            new = torch.randint(50, (count,), device="cuda")
            for each in (reset, ended, told, masked, read):
                each[row, :count].copy_(new)
            ended[row, count:].fill_(1)
            lengths[row] = count
            mask[row, :count].copy_(torch.ones(count, device="cuda"))
        graph.replay()
        other.replay()
        print(pooled.sum().item(), mean.sum().item(), total.sum().item())
        for row, count in enumerate(counts):
            print(hidden[row, count - 1].sum().item(), by_time[:count, row].sum().item())
            print(best.view(ROWS, TIME)[row, :count].tolist())


def slots():
    """One row changes at a time; fields of rows; rows that grow."""
    points, state, grown = (torch.zeros(ROWS, 6, device="cuda") for _ in range(3))
    graph, distance = captured(
        lambda: points.norm(dim=1).mean() + (state[:, :3] - state[:, 3:]).norm() + grown.sum()
    )
    for row in range(ROWS):
        state[row].copy_(torch.randn(6))
    for n in range(1, 6):
        points[n % ROWS].copy_(torch.randn(6))
        for row in range(ROWS):
            state[row, :3].copy_(torch.randn(3))
            grown[row, :n].copy_(torch.ones(n))
        graph.replay()
        print(distance.item())


def sizes():
    tokens, pixels, rows = rows_of(), rows_of(torch.float32), rows_of()
    graphs = {
        size: captured(
            lambda size=size: (
                embed(tokens[:size]).mean(),
                pixels[:size].amax(),
                embed(rows[:size]).sum(),
            )
        )
        for size in (4, 2, 1)
    }
    narrow = rows_of()
    widths = {
        width: captured(lambda width=width: embed(narrow[:, :width]).mean()) for width in (8, 4, 2)
    }
    for size in (4, 2, 1, 4, 1, 2):
        tokens[:size].copy_(torch.randint(50, (size, TIME)))
        pixels.view(-1)[: size * TIME].copy_(torch.randn(size * TIME))
        for row in range(size):
            rows[row].copy_(torch.randint(50, (TIME,)))
        graph, results = graphs[size]
        graph.replay()
        print([result.item() for result in results])
    for width in (8, 4, 2, 8, 2, 4):
        for row in range(ROWS):
            narrow[row, :width].copy_(torch.randint(50, (width,)))
        graph, mean = widths[width]
        graph.replay()
        print(mean.item())


with torch.inference_mode():
    serve()
    slots()
    sizes()
