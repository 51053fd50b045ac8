"""The script catches the failure and goes on; the first error is reported."""

import torch

x = torch.randn(8, device="cuda")
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        x.sum().item()  # <- sync-item
except RuntimeError as error:
    assert "previous error during capture" in str(error), error
    assert "not permitted when stream is capturing" in str(error.__context__), error.__context__
else:
    raise AssertionError("the capture should have failed")
