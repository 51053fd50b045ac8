"""A captured function adds to a global, which `main` prints after the replays."""

import torch

SAMPLES = 0


def body(x):
    global SAMPLES
    SAMPLES += x.size(0)  # guilty: no replay adds to it
    return torch.relu(x)


def main():
    x = torch.randn(12, 3, device="cuda")
    body(x)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = body(x)
    for _ in range(4):
        x.normal_()
        g.replay()
    torch.cuda.synchronize()
    print(f"{SAMPLES} samples", y.mean().item())  # guilty: the samples of the captures


if __name__ == "__main__":
    main()
