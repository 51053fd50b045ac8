import threading

import torch
from torch import nn


def event_guards_a_plan(device):
    head = nn.Linear(8, 32, device=device)
    counts = {"calls": 0}

    def forward(x):
        plan, ready = {}, threading.Event()

        def choose():
            counts["calls"] += 1
            plan["calls"] = counts["calls"]
            plan["length"] = 2 if x.shape[0] < 16 else 4
            ready.set()

        threading.Thread(target=choose).start()
        assert ready.wait(5) and plan["calls"] > 0
        return head(x).topk(plan["length"]).indices

    return forward, (torch.randn(4, 8, device=device),)
