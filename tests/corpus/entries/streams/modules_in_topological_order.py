import graphlib

import torch
from torch import nn


def modules_in_topological_order(device):
    needs = {"out": {"left", "right"}, "left": {"stem"}, "right": {"stem", "left"}, "stem": set()}
    layers = nn.ModuleDict({name: nn.Linear(6, 6) for name in needs}).to(device)

    def f(x):
        sorter, done = graphlib.TopologicalSorter(needs), {}
        sorter.prepare()
        while sorter.is_active():
            for name in sorted(sorter.get_ready()):
                inputs = [done[other] for other in sorted(needs[name])] or [x]
                done[name] = torch.tanh(layers[name](torch.stack(inputs).sum(0)))
                sorter.done(name)
        return done["out"]

    return f, (torch.randn(4, 6, device=device),)
