"""Captured code goes through containers of tensors that have other numbers of items later."""

import torch


def captured(function):
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    graph.replay()
    return graph, result


def curve():
    return torch.rand(64).cuda()


signal = torch.rand(2, 64, device="cuda")
bands = [curve()]
masks = []


def equalized():
    spectrum = signal
    for index in range(len(bands)):
        spectrum = spectrum * bands[index]
    return spectrum


def masked():
    return sum(signal * mask for mask in masks) if masks else signal * 1


def averaged(parts):
    return sum(parts) / len(parts)


class Equalizer:
    def __init__(self):
        self.bands = [curve(), curve()]
        self.named = {"low": curve()}
        self.shelves = (curve(),)
        self.rows = [curve()]
        self.weights = [curve()]
        self.pairs = [curve()]

    def filtered(self):
        spectrum = signal
        for band in self.bands:
            spectrum = spectrum * band
        return spectrum

    def by_name(self):
        named = self.named
        spectrum = signal
        for band in named.values():
            spectrum = spectrum * band
        return spectrum

    def stacked(self):
        return signal + torch.stack(self.rows).sum(0)

    def weighted(self):
        return signal / len(self.weights) + self.weights[0]

    def shelved(self):
        return torch.stack([signal * shelf for shelf in self.shelves]).sum(0)

    def paired(self):
        return averaged(self.pairs)


equalizer = Equalizer()

graph, out = captured(equalized)
bands.append(curve())  # <- control-flow-frozen
graph.replay()

graph, out = captured(masked)
masks.append(curve())  # <- control-flow-frozen
graph.replay()

graph, out = captured(equalizer.filtered)
equalizer.bands.pop()  # <- control-flow-frozen
graph.replay()

graph, out = captured(equalizer.by_name)
equalizer.named["high"] = curve()  # <- control-flow-frozen
graph.replay()

graph, out = captured(equalizer.shelved)
equalizer.shelves = (*equalizer.shelves, curve())  # <- control-flow-frozen
graph.replay()

graph, out = captured(equalizer.paired)
equalizer.pairs.append(curve())  # <- control-flow-frozen
graph.replay()

graph, out = captured(equalizer.weighted)
equalizer.weights.append(curve())  # <- python-scalar-frozen
graph.replay()

graph, out = captured(equalizer.stacked)
equalizer.rows.append(curve())  # <- control-flow-frozen
graph.replay()

print(out.sum().item())
