"""A result of two slots in turn is read after a wait for the event of the other slot."""

import torch


class Slot:
    def __init__(self):
        self.x = torch.zeros(8, device="cuda")
        self.ready = torch.cuda.Event()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.x + 1


slots = [Slot(), Slot()]
worker = torch.cuda.Stream()
main = torch.cuda.current_stream()
total = torch.zeros(8, device="cuda")
for count in range(4):
    slot = slots[count % 2]
    worker.wait_stream(main)
    with torch.cuda.stream(worker):
        slot.x.fill_(count)
        slot.graph.replay()
        slot.ready.record()
    main.wait_event(slots[(count + 1) % 2].ready)
    total.add_(slot.y)  # <- unsynchronized-io
print(total.sum().item())
