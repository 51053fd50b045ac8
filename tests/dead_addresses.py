"""Programs that give back memory which a graph uses, and then replay it; and programs that do it
right.

``python dead_addresses.py FOLDER [simulated]`` records each into ``FOLDER/NAME.cgt``. Of those that
are wrong, the line that gives memory back ends with ``gone``, and the one that uses it with
``used``.
"""

import contextlib
import gc
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import cgtool

PROGRAMS: list = []


def program(function):
    PROGRAMS.append(function)
    return function


def captured(function, *args):
    """A graph of the function, and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(*args)
    return graph, out


def numbers(*shape):
    return torch.randn(*shape, device="cuda")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        hidden = self.up(x).relu()  # used
        return self.down(hidden) * self.scale


class Engine:
    """Captures its model once."""

    def __init__(self, forward=None):
        self.model = Model().cuda().requires_grad_(False)
        self.x = numbers(4, 8)
        self.graph, self.out = captured(forward or self.model, self.x)

    def step(self):
        self.graph.replay()


# --- wrong


@program
def input_of_a_function():
    def record():
        bias = numbers(64)
        return captured(lambda: bias + 1)  # used

    graph, _ = record()  # gone
    graph.replay()


@program
def weights_are_assigned():
    # Weights loaded by `assign=True`, as loaders of checkpoints do.
    engine = Engine()
    engine.step()
    cgtool.event("ready")  # which looks at all weights
    state = Model().cuda().requires_grad_(False).state_dict()
    engine.model.load_state_dict(state, assign=True)  # gone
    engine.step()


@program
def data_of_a_weight():
    engine = Engine()
    weight = engine.model.up.weight
    weight.data = torch.zeros(16, 8, device="cuda")  # gone
    engine.step()


@program
def offloaded_and_back():
    engine = Engine()
    engine.step()
    engine.model.to("cpu")  # gone
    engine.model.to("cuda")
    engine.step()


@program
def sleep_without_memory():
    # An engine that sleeps: the storage lives, and its memory does not.
    engine = Engine()
    storage = engine.model.up.weight.untyped_storage()
    size, weight = storage.nbytes(), engine.model.up.weight.clone()
    storage.resize_(0)  # gone
    filler = [numbers(16, 8) for _ in range(4)]
    storage.resize_(size)
    engine.model.up.weight.copy_(weight)
    if engine.model.up.weight.data_ptr() == filler[0].data_ptr():
        return
    engine.step()


@program
def cache_is_allocated_anew():
    class Cached:
        def __init__(self):
            self.cache = torch.zeros(32, 8, device="cuda")
            self.x = numbers(4, 8)
            self.graph, self.out = captured(self.read, self.x)

        def read(self, x):
            return x @ self.cache.T  # used

    engine = Cached()
    engine.cache = torch.zeros(64, 8, device="cuda")  # gone
    engine.graph.replay()


@program
def state_of_an_optimizer():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = numbers(4, 8)

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()  # used

    graph, _ = captured(step)
    graph.replay()
    optimizer.state.clear()  # gone
    graph.replay()


@program
def buffer_is_registered_anew():
    model, x = Model().cuda(), numbers(4, 8)
    graph, _ = captured(lambda: x * model.scale)  # used
    model.register_buffer("scale", torch.zeros(8, device="cuda"))  # gone
    graph.replay()


@program
def gradients_are_none():
    weight = nn.Parameter(numbers(8, 8))
    weight.grad = torch.zeros(8, 8, device="cuda")
    x = numbers(4, 8)

    def step():
        (x @ weight).sum().backward()  # used

    graph, _ = captured(step)
    weight.grad = None  # gone
    graph.replay()


@program
def cast_of_the_caller():
    x = numbers(4, 8)
    weight = numbers(8, 8)

    def record(half):
        return captured(lambda: half @ weight)  # used

    graph, _ = record(x.clone())  # gone
    graph.replay()


@program
def adapter_is_unloaded():
    layer = nn.Linear(8, 8).cuda().requires_grad_(False)
    layer.adapter = numbers(8, 8)
    x = numbers(4, 8)
    graph, _ = captured(lambda: layer(x) + x @ layer.adapter)  # used
    graph.replay()
    layer.adapter = None  # gone
    graph.replay()


@program
def model_in_a_cycle():
    model = Model().cuda().requires_grad_(False)
    model.itself = [model]
    x = numbers(4, 8)
    graph, _ = captured(model, x)
    del model
    gc.collect()  # gone
    graph.replay()


@program
def freed_by_another_thread():
    kept = [numbers(64)]
    graph, _ = captured(lambda: kept[0].sin())  # used

    def drop():
        kept.clear()  # gone

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    graph.replay()


@program
def one_of_two_graphs():
    # The graph of the small batch still uses the old table.
    table = [numbers(16, 8)]
    few, many = numbers(2, 8), numbers(4, 8)
    small, _ = captured(lambda: few @ table[0].T)  # used
    table[0] = numbers(16, 8)  # gone
    large, _ = captured(lambda: many @ table[0].T)
    for _ in range(20):
        large.replay()
    small.replay()


@program
def written_after_it_is_freed():
    out = [numbers(4, 8)]
    x = numbers(4, 8)
    graph, _ = captured(lambda: out[0].copy_(x).sum())  # used
    graph.replay()
    out.pop()  # gone
    graph.replay()


# --- right


@program
def right_loaded_in_place():
    engine = Engine()
    engine.step()
    engine.model.load_state_dict(Model().cuda().state_dict())
    engine.step()


@program
def right_swapped_and_back():
    engine = Engine()
    other = nn.Parameter(torch.zeros(16, 8, device="cuda"), requires_grad=False)
    for _ in range(2):
        torch.utils.swap_tensors(engine.model.up.weight, other)
        engine.step()


@program
def right_sleep_keeps_addresses():
    engine = Engine()
    saved = {name: value.cpu() for name, value in engine.model.state_dict().items()}
    engine.step()
    for name, value in engine.model.state_dict().items():
        value.copy_(saved[name])
    engine.step()


@program
def right_captured_again():
    engine = Engine()
    engine.step()
    engine.model.load_state_dict(Model().cuda().state_dict(), assign=True)
    engine.model.requires_grad_(False)
    engine.graph, engine.out = captured(engine.model, engine.x)
    engine.step()


@program
def right_graph_goes_first():
    engine = Engine()
    engine.step()
    engine.graph.reset()
    engine.model.to("cpu")
    engine.model.to("cuda")
    engine.graph, engine.out = captured(engine.model, engine.x)
    engine.step()


@program
def right_never_replayed_again():
    engine = Engine()
    engine.step()
    del engine.model


@program
def right_temporaries_of_the_capture():
    x = numbers(4, 8)

    def step():
        buffer = torch.empty(4, 8, device="cuda")
        torch.mul(x, 2, out=buffer)
        return (buffer + torch.zeros_like(buffer)).sum()

    graph, out = captured(step)
    gc.collect()
    graph.replay()
    del out
    graph.replay()


@program
def right_only_the_shape_is_used():
    x = numbers(4, 8)
    graph, _ = captured(lambda: torch.zeros_like(x) + 1)
    x = None
    graph.replay()


@program
def right_views_keep_memory():
    x = numbers(4, 8)
    graph, _ = captured(lambda: x.sin())
    row = x[0]
    x = None
    graph.replay()
    row.zero_()
    graph.replay()


@program
def right_output_of_another_graph():
    x = numbers(4, 8)
    first, hidden = captured(lambda: x.sin())
    second, _ = captured(lambda: hidden.cos())
    hidden = None
    first.replay()
    second.replay()


@program
def right_memory_comes_back():
    # As an engine sleeps, or FSDP frees what it has gathered.
    engine = Engine()
    engine.step()
    storage = engine.model.up.weight.untyped_storage()
    size, address, saved = storage.nbytes(), storage.data_ptr(), engine.model.up.weight.clone()
    storage.resize_(0)
    storage.resize_(size)
    if storage.data_ptr() != address:
        return
    engine.model.up.weight.copy_(saved)
    engine.step()


@program
def right_trained_in_place():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = numbers(4, 8)

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    graph, _ = captured(step)
    for _ in range(20):
        x.copy_(numbers(4, 8))
        graph.replay()


def main(folder, device=None):
    for function in PROGRAMS:
        path = Path(folder, f"{function.__name__}.cgt")
        gc.disable()
        with cgtool.recording(path, device=device), contextlib.suppress(RuntimeError):
            function()
        gc.enable()


if __name__ == "__main__":
    main(*sys.argv[1:])
