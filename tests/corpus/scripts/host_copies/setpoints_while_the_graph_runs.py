"""Motor control: setpoints are written to pinned memory, which the graph uploads."""

import numpy as np
import torch

torch.manual_seed(0)


class Drive:
    def __init__(self, axes=6):
        self.inbox = torch.zeros(axes, pin_memory=True)
        self.wanted = self.inbox.numpy()
        self.setpoint = torch.zeros(axes, device="cuda")
        self.position = torch.zeros(axes, device="cuda")
        self.velocity = torch.zeros(axes, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.control()
        stream.synchronize()
        with torch.cuda.graph(self.graph):
            self.control()

    def control(self):
        self.setpoint.copy_(self.inbox, non_blocking=True)
        force = 30 * (self.setpoint - self.position) - 4 * self.velocity
        self.velocity.add_(force, alpha=0.002)
        self.position.add_(self.velocity, alpha=0.002)

    def command(self, values):
        self.wanted[:] = values  # <- pinned-source-frozen
        self.graph.replay()


drive = Drive()
trajectory = np.linspace(0, 1, 50)[:, None] * np.ones(6)
for point in trajectory:
    drive.command(point)
torch.cuda.synchronize()
print(drive.position.tolist())
