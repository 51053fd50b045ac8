"""An operator tunes the gains of a controller while it runs; they are tensors."""

from dataclasses import dataclass, field

import torch


@dataclass
class Gains:
    kp: torch.Tensor = field(default_factory=lambda: torch.full((12,), 20.0, device="cuda"))
    kd: torch.Tensor = field(default_factory=lambda: torch.full((12,), 0.5, device="cuda"))

    def tune(self, kp, kd):
        self.kp.fill_(kp)
        self.kd.fill_(kd)


class JointController:
    def __init__(self, gains):
        self.gains = gains
        self.q = torch.zeros(12, device="cuda")
        self.dq = torch.zeros(12, device="cuda")
        self.target = torch.ones(12, device="cuda")

    def torque(self):
        return self.gains.kp * (self.target - self.q) - self.gains.kd * self.dq


controller = JointController(Gains())
controller.torque()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torque = controller.torque()

for kp in (20.0, 30.0, 45.0):
    controller.gains.tune(kp=kp, kd=0.05 * kp)
    for _ in range(10):
        graph.replay()
        controller.dq.add_(torque, alpha=0.01)
        controller.q.add_(controller.dq, alpha=0.01)
    print(kp, controller.q.mean().item())
