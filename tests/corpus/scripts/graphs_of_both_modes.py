"""One graph for training, one for evaluation, and mode switches between them."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
x = torch.randn(8, 4, device="cuda")


def capture(training):
    model.train(training)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(2):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    return graph, y


train, y_train = capture(True)
evaluate, y_eval = capture(False)
good = True
for i in range(4):
    x.normal_()
    (train if i % 2 else evaluate).replay()
    if i % 2 == 0:
        with torch.no_grad():
            good = good and torch.allclose(y_eval, model(x), atol=1e-5)
print(good)  # eager: True
