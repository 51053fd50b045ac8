"""History of clones and numbers, in nested containers."""

import torch

x = torch.zeros(4, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = x + 1
log = {"out": [], "best": {"value": None}, "last": y}
rows = []
for step in range(5):
    x.fill_(step)
    g.replay()
    log["out"].append(y.detach().clone())
    log["best"]["value"] = y.sum().item()
    rows.append({"step": step, "y": y.cpu()})
print(torch.stack(log["out"]).tolist(), log["best"], [r["y"].tolist() for r in rows], log["last"])
