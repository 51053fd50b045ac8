"""Arrays with the memory of pinned tensors are read by calls and assignments, without a wait."""

import array
import io
import pickle
import zlib
from collections import namedtuple

import numpy as np
import torch
from numpy import concatenate

x = torch.zeros(8, device="cuda")
pinned = torch.empty(8, pin_memory=True)
samples = pinned.numpy()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    pinned.copy_(x * 2, non_blocking=True)

outdata = np.zeros(8, np.float32)
numbers, table = [], {"samples": samples}
memory = memoryview(samples)
words = memoryview(array.array("f", bytes(32)))
file = io.BytesIO()
host, frames = torch.zeros(8), 4
Slot = namedtuple("Slot", "view")
slots = [Slot(samples[:4]), Slot(samples[4:])]


class Ring:
    def __init__(self):
        self.views = {"left": samples[:4], "right": samples[4:]}
        self.halves = [samples[:4], samples[4:]]

    def level(self, i, side):
        half = self.halves[i % 2].sum()  # <- unsynchronized-io
        return half + self.views[side].max()  # <- unsynchronized-io


graph.replay()
outdata[:] = samples  # <- unsynchronized-io
outdata[:frames] = samples[:frames]  # <- unsynchronized-io
outdata[:] = memoryview(samples)  # <- unsynchronized-io
outdata[:] = memory  # <- unsynchronized-io
outdata[0] = samples[0]  # <- unsynchronized-io
host[:] = pinned  # <- unsynchronized-io
numbers[:] = samples  # <- unsynchronized-io
words[:] = samples  # <- unsynchronized-io
np.copyto(outdata, samples[:frames].repeat(2))  # <- unsynchronized-io
np.copyto(outdata, samples)  # <- unsynchronized-io
np.copyto(dst=outdata, src=samples)  # <- unsynchronized-io
both = np.concatenate([samples, outdata])  # <- unsynchronized-io
both = concatenate((outdata, samples))  # <- unsynchronized-io
both = np.stack(list(table.values()))  # <- unsynchronized-io
both = np.stack(Ring().halves)  # <- unsynchronized-io
norm = np.linalg.norm(samples)  # <- unsynchronized-io
peak = np.float32(samples[2])  # <- unsynchronized-io
turned = samples.reshape(2, 4).T.sum()  # <- unsynchronized-io
product = outdata.dot(samples)  # <- unsynchronized-io
np.multiply(outdata, 2, where=samples > 0, out=outdata)  # <- unsynchronized-io
np.add(outdata, samples, out=outdata)  # <- unsynchronized-io
tensor = torch.tensor(samples)  # <- unsynchronized-io
tensors = [torch.tensor([each]) for each in [samples]]  # <- unsynchronized-io
file.write(samples)  # <- unsynchronized-io
file.write(samples[:frames])  # <- unsynchronized-io
checksum = zlib.crc32(memory)  # <- unsynchronized-io
pickled = pickle.dumps(samples)  # <- unsynchronized-io
level = slots[1].view.mean()  # <- unsynchronized-io
sides = Ring().level(3, "left")
for i in range(2):
    level = slots[i].view.mean()  # <- unsynchronized-io
    level = table["samples"].min()  # <- unsynchronized-io
while file.write(samples) < 0:  # <- unsynchronized-io
    pass
print(samples)  # <- unsynchronized-io
torch.cuda.synchronize()
