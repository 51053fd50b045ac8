"""What eager code makes of an output on one stream is used on another, which has waited."""

import queue
import threading

import torch

x = torch.zeros(8, device="cuda")
weight = torch.ones(8, device="cuda", requires_grad=True)
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
main = torch.cuda.current_stream()


def answer():
    side.wait_stream(main)
    with torch.cuda.stream(side):
        graph.replay()
        return y.clone()


first = answer()
main.wait_stream(side)
first.record_stream(main)
print(first.sum().item())

second = answer()
ready = side.record_event()
ready.wait()
print(second.sum().item())

third = answer()
ready.record(side)
ready.synchronize()
print(third.tolist())

fourth = answer()
side.synchronize()
print(fourth * 2)

fifth = answer()
torch.cuda.synchronize()
print(fifth.sum())

sixth = answer()
ready.record(side)
while not ready.query():
    pass
print(sixth.sum())

# Shapes and views are no values.
seventh = answer()
print(seventh.view(2, 4).shape, torch.zeros_like(seventh).sum().item())
seventh.record_stream(main)
main.wait_stream(side)

# The memory of what is freed may go to any tensor.
for _ in range(100):
    answer()
    main.wait_stream(side)
    torch.zeros(8, device="cuda").sum()

# Copies to the host wait.
side.wait_stream(main)
with torch.cuda.stream(side):
    graph.replay()
    on_host = y.cpu()
print(on_host.sum())

# Autograd orders the streams of a backward.
side.wait_stream(main)
with torch.cuda.stream(side):
    graph.replay()
    loss = (y.clone() * weight).sum()
main.wait_stream(side)
loss.backward()
print(weight.grad.sum().item())

# Each slot has an event.
slots = [torch.zeros(8, device="cuda") for _ in range(2)]
filled = [torch.cuda.Event(), torch.cuda.Event()]
free = [torch.cuda.Event(), torch.cuda.Event()]
for step in range(6):
    with torch.cuda.stream(side):
        free[step % 2].wait()
        graph.replay()
        slots[step % 2].copy_(y)
        filled[step % 2].record()
    if step:
        main.wait_event(filled[(step - 1) % 2])
        slots[(step - 1) % 2].mul_(2)
        free[(step - 1) % 2].record(main)

# A worker hands over an event with its answer, or waits for it.
answers = queue.Queue()


def work():
    with torch.cuda.stream(side):
        for _ in range(3):
            graph.replay()
            made = y.clone()
            answers.put((made, side.record_event()))
        graph.replay()
        made = y.clone()
        side.synchronize()
        answers.put((made, None))


worker = threading.Thread(target=work)
worker.start()
for _ in range(4):
    made, ready = answers.get()
    if ready is not None:
        torch.cuda.current_stream().wait_event(ready)
    print(made.sum().item())
worker.join()
