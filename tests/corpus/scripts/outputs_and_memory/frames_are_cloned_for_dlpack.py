"""A renderer hands clones of its frames to an encoder, through DLPack."""

import torch


class Encoder:
    def __init__(self):
        self.group = []

    def push(self, frame):
        self.group.append(torch.from_dlpack(frame))

    def flush(self):
        means = [frame.float().mean().item() for frame in self.group]
        self.group.clear()
        return means


angle = torch.zeros((), device="cuda")
axis = torch.linspace(-1, 1, 32, device="cuda")


def render():
    image = torch.cos(4 * axis[:, None] + angle) * torch.sin(4 * axis[None] - angle)
    return (127 + 127 * image).to(torch.uint8)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    render()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    frame = render()

encoder = Encoder()
for number in range(3):
    angle.fill_(0.3 * number)
    graph.replay()
    encoder.push(frame.clone())
print([round(value) for value in encoder.flush()])
