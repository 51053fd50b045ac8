"""Names that choose what the graph reads: the key of a dict, the index of a list, and an option."""

import torch

weights = {name: torch.randn(8, 8, device="cuda") for name in ("plain", "legal")}
slots = [torch.zeros(8, device="cuda") for _ in range(2)]
x = torch.ones(8, device="cuda")


class Server:
    name = "plain"
    slot = 0
    reduction = "sum"

    def compute(self):
        chosen = x @ weights[self.name] + slots[self.slot]
        return torch.nn.functional.mse_loss(chosen, x, reduction=self.reduction)


server = Server()
server.compute()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = server.compute()
server.name = "legal"  # <- python-scalar-frozen
server.slot = 1  # <- python-scalar-frozen
server.reduction = "mean"  # <- python-scalar-frozen
graph.replay()
