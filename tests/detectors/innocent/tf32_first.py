"""TF32 is set once at the top; another flag changes for a phase without matmuls."""

import torch

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.set_float32_matmul_precision("high")
x = torch.randn(16, 16, device="cuda")
x @ x
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = x @ x
elementwise = torch.cuda.CUDAGraph()
with torch.cuda.graph(elementwise):
    z = x.exp()
g.replay()
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    q = torch.randn(1, 2, 4, 8, device="cuda")
    attention = torch.cuda.CUDAGraph()
    with torch.cuda.graph(attention):
        a = torch.nn.functional.scaled_dot_product_attention(q, q, q)
attention.replay()
g.replay()
elementwise.replay()
print(y.sum().item(), z.sum().item(), a.sum().item())
