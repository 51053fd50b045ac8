"""An attribute is set, and then set to what is made of it, in the lines that are captured first."""

import torch


class App:
    pass


app = App()
app.x = torch.ones(8, device="cuda")
app.graph = torch.cuda.CUDAGraph()
app.side = torch.cuda.Stream()
app.x * 2
torch.cuda.synchronize()
with torch.cuda.graph(app.graph):
    app.z = app.x + 1
    app.z = app.z + app.x
for value in (2.0, 3.0):
    app.x.fill_(value)
    app.graph.replay()
    print(app.z[0].item())
