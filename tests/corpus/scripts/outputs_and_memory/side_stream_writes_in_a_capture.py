"""Work on a stream that was not forked and that allocates nothing: it runs once, and CUDA refuses
only the wait for it."""

import torch

x, doubled = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
side = torch.cuda.Stream()


def capture(joins):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # <- leak-after-failed-capture
        with torch.cuda.stream(side):
            torch.mul(x, 2, out=doubled)  # <- side-stream-not-forked
        if joins == "by a stream":
            torch.cuda.current_stream().wait_stream(side)
        if joins == "by an event":
            side.record_event().wait()
        y = x + 1
    return graph, y


for joins in ("by a stream", "by an event"):
    try:
        capture(joins)
    except RuntimeError as error:
        refused = error.__context__
        assert "dependency created on uncaptured work in another stream" in str(refused), refused
    else:
        raise AssertionError("the wait is refused")

x.fill_(3)
graph, y = capture("")
assert doubled.tolist() == [6.0] * 8
x.fill_(4)
graph.replay()
assert (y.tolist(), doubled.tolist()) == ([5.0] * 8, [6.0] * 8)
