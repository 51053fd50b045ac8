"""Arguments of streams, events and graphs that are passed by keyword."""

import torch

x = torch.zeros(8, device="cuda")
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
begun, ended = torch.cuda.Event(), torch.cuda.Event()

graph = torch.cuda.CUDAGraph()
side.wait_stream(stream=main)
with torch.cuda.stream(side):
    graph.capture_begin(pool=None, capture_error_mode="thread_local")
    y = x + 1
    graph.capture_end()
main.wait_stream(stream=side)

main.record_event(event=begun)
side.wait_event(event=begun)
with torch.cuda.stream(side):
    graph.replay()
    ended.record(stream=side)
ended.wait(stream=main)
print(y.sum().item())
