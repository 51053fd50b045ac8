"""An operator tunes the gains of a controller while it runs."""

from dataclasses import dataclass

import torch


@dataclass
class Gains:
    kp: float = 20.0
    kd: float = 0.5


class JointController:
    def __init__(self, gains):
        self.gains = gains
        self.q = torch.zeros(12, device="cuda")
        self.dq = torch.zeros(12, device="cuda")
        self.target = torch.ones(12, device="cuda")

    def torque(self):
        error = self.target - self.q
        return self.gains.kp * error - self.gains.kd * self.dq  # guilty: the numbers of the capture


controller = JointController(Gains())
controller.torque()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torque = controller.torque()

for kp in (20.0, 30.0, 45.0):
    controller.gains = Gains(kp=kp, kd=0.05 * kp)  # guilty: the graph has the old numbers
    for _ in range(10):
        graph.replay()
        controller.dq.add_(torque, alpha=0.01)
        controller.q.add_(controller.dq, alpha=0.01)
    print(kp, controller.q.mean().item())
