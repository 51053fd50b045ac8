"""Host state that each call changes, as one call of the captured code shows: on a GPU it is not
called again."""

import enum

import torch

temperature = torch.tensor(1.0)
x = torch.randn(4, 8, device="cuda")


class Phase(enum.Enum):
    RISING = "falling"
    FALLING = "rising"

    @property
    def following(self):
        return Phase(self.name.lower())


class Wave:
    def __init__(self):
        self.phase = Phase.RISING

    def __call__(self, x):
        factor = 2.0 if self.phase is Phase.RISING else 0.5
        self.phase = self.phase.following  # <- cpu-state-step-counter
        return x * factor


def cooled(x):
    temperature.mul_(0.9)  # <- cpu-work-in-region
    return x / temperature


weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
constant = torch.optim.Adagrad([weight], lr=0.1)
decaying = torch.optim.Adagrad([weight], lr=0.1, lr_decay=0.1)


def decayed(x):
    weight.grad = x.mean(0)
    constant.step()
    decaying.step()  # <- python-scalar-frozen
    return weight.detach()


for step in (Wave(), cooled, decayed):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(x)
    for _ in range(3):
        x.mul_(0.9)
        graph.replay()
        print(out.sum().item())
