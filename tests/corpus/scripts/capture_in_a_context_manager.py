"""A context manager around `capture_begin` and `capture_end` on a stream of its own."""

import contextlib

import torch


@contextlib.contextmanager
def capturing(pool=None, mode="thread_local"):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(*((pool,) if pool else ()), capture_error_mode=mode)
        try:
            yield graph
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)


mean = torch.zeros(4, device="cuda")
variance = torch.ones(4, device="cuda")
measurement = torch.zeros(4, device="cuda")


def kalman_update():
    gain = variance / (variance + 0.5)
    mean.add_(gain * (measurement - mean))
    variance.mul_(1 - gain)


kalman_update()
mean.zero_()
variance.fill_(1)
with capturing() as graph:
    kalman_update()
for value in (1.0, 1.0, 1.0):
    measurement.fill_(value)
    graph.replay()
print(f"{mean[0].item():.4f}")  # eager: 0.8571
