"""An object has a list of weights, and current ones, which get the values of those."""

import types

import torch
from torch.func import functional_call

app = types.SimpleNamespace()
app.members = [{"weight": torch.randn(2, 5, device="cuda")} for _ in range(3)]
app.current = {"weight": app.members[0]["weight"].clone()}
app.skeleton = torch.nn.Linear(5, 2, bias=False, device="cuda")
app.states = torch.randn(4, 5, device="cuda")


def evaluate():
    return functional_call(app.skeleton, app.current, (app.states,))


with torch.no_grad():
    evaluate()
    torch.cuda.synchronize()
    app.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(app.graph):
        app.values = evaluate()
    for member in app.members:
        app.current["weight"].copy_(member["weight"])
        app.graph.replay()
        print(app.values.mean().item())
