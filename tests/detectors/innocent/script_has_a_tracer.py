"""The script sees no trace function but its own, and names are not followed while it has one."""

import sys

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
calls = []


def run(value):
    x.fill_(value)
    graph.replay()
    return y


def trace(frame, _event, _argument):
    if frame.f_code.co_filename == __file__:
        calls.append(frame.f_code.co_name)


def compare(first, second):
    return (first - second).tolist()


def with_a_tracer():
    before = run(1.0)
    run(2.0)
    sys.settrace(trace)
    before = run(3.0).clone()
    after = y
    print(compare(after, before))
    sys.settrace(None)
    before = y.clone()
    print(compare(y, before))


for value in (1.0, 2.0, 3.0):
    result = run(value)
    if sys.gettrace() is not None:
        raise SystemExit("there is a trace function")
    print(result.tolist())
with_a_tracer()
old = sys.gettrace()
sys.settrace(trace)
if sys.gettrace() is not trace:
    raise SystemExit("the trace function is not the script's")
sys.settrace(old)
run(4.0)
print(y.tolist(), sorted(set(calls)), sys.gettrace())
