"""Two cameras with streams, inputs, pools and graphs of their own; the weights are shared."""

import torch
from torch import nn


class Channel:
    def __init__(self, net, shape):
        self.stream = torch.cuda.Stream()
        self.frame = torch.zeros(shape, device="cuda")
        self.done = torch.cuda.Event()
        self.stream.wait_stream(torch.cuda.current_stream())
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            with torch.cuda.stream(self.stream):
                net(self.frame)
            self.stream.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.boxes = net(self.frame)

    def submit(self, frame):
        with torch.cuda.stream(self.stream):
            self.frame.copy_(frame, non_blocking=True)
            self.graph.replay()
            self.done.record()

    def result(self):
        self.done.synchronize()
        return self.boxes.amax((0, 2)).tolist()


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 5, 3, 2, 1), nn.Flatten(2))
net = net.cuda().eval()
videos = torch.rand(2, 5, 1, 3, 32, 32, device="cuda")
torch.cuda.synchronize()
channels = [Channel(net, (1, 3, 32, 32)) for _ in range(2)]

for moment in range(5):
    for channel, video in zip(channels, videos, strict=True):
        channel.submit(video[moment])
    for number, channel in enumerate(channels):
        print(moment, number, [round(value, 3) for value in channel.result()])
