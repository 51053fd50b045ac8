"""A test that holds the replay against eager, on fresh inputs."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).cuda()
static = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    model(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(static)
    for _ in range(3):
        x = torch.randn(4, 8, device="cuda")
        expected = model(x)
        static.copy_(x)
        graph.replay()
        torch.testing.assert_close(out, expected)
    weights = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    graph.replay()
    torch.testing.assert_close(out, model(static))
