"""What captured code has put into lists is kept elsewhere, or the script fills the lists."""

import torch

x = torch.ones(4, device="cuda")
activations, answers, marks, evaluated = [], [], {}, []


def step():
    y = x * 2
    activations.append(y)
    answers.append(y + 1)
    marks["sum"] = y.sum()
    evaluated.append(y.mean())
    return y.square()


step()
for each in (activations, answers, marks, evaluated):
    each.clear()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step()
kept, answer, total = list(activations), answers.pop(), marks.pop("sum")
activations.clear()
evaluated.clear()
for value in range(3):
    x.fill_(value)
    graph.replay()
    answers.append(answer.clone())
    print([each.sum().item() for each in kept], total.item(), answers[-1].tolist())
    if value % 2:
        step()
        print(evaluated[-1].item(), activations[0].tolist())
        activations.clear()
        evaluated.clear()
    answers.clear()
