"""Two streams write different rows, columns and halves of the same tensors, and read the rest."""

import torch

side = torch.cuda.Stream()
x = torch.randn(8, 8, device="cuda")
rows, columns = torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.sin(x[:4], out=rows[:4])
        columns[:, :4].copy_(x[:, 4:])
        done = side.record_event()
    torch.cos(x[4:], out=rows[4:])
    columns[:, 4:].copy_(x[:, :4])
    done.wait()
    total = rows + columns
graph.replay()
print(total.sum().item())
