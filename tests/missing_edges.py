"""Graphs with one missing edge each, for either device.

The two nodes that no edge orders are at the lines that end with ``first`` and ``second``. Beside
each entry there is one whose name ends with ``_right``: the same with the edge.
"""

import torch

ENTRIES: list[str] = []


def entry(build):
    """``NAME`` and ``NAME_right``."""
    ENTRIES.append(build.__name__)
    globals()[f"{build.__name__}_right"] = lambda device: build(device, right=True)
    return build


def numbers(*shape, device):
    return torch.randn(*shape, device=device)


@entry
def join_is_missing(device, right=False):
    weight, side = numbers(6, 6, device=device), torch.cuda.Stream()

    def step(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = (x @ weight).relu()  # first
        z = x.sin()
        if right:
            current.wait_stream(side)
        out = z + y  # second
        current.wait_stream(side)
        return out

    return step, (numbers(4, 6, device=device),)


@entry
def fork_does_not_wait(device, right=False):
    weight, side = numbers(6, 6, device=device), torch.cuda.Stream()

    def step(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        hidden = x @ weight  # first
        if right:
            side.wait_stream(current)
        with torch.cuda.stream(side):
            y = hidden.exp()  # second
        z = x.sin()
        current.wait_stream(side)
        return y, z, hidden

    return step, (numbers(4, 6, device=device),)


@entry
def buffer_is_overwritten_while_read(device, right=False):
    buffer, side = numbers(4, 6, device=device), torch.cuda.Stream()

    def step(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        out = buffer * 2  # first
        if right:
            side.wait_stream(current)
        with torch.cuda.stream(side):
            buffer.add_(x)  # second
        current.wait_stream(side)
        return out

    return step, (numbers(4, 6, device=device),)


@entry
def input_is_staged_on_another_stream(device, right=False):
    staged, side = numbers(4, 6, device=device), torch.cuda.Stream()

    def step(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            staged.copy_(x)  # first
        y = x.sin()
        if right:
            current.wait_stream(side)
        out = staged + y  # second
        current.wait_stream(side)
        return out

    return step, (numbers(4, 6, device=device),)


@entry
def two_streams_add_to_one_total(device, right=False):
    total, side = numbers(4, 6, device=device), torch.cuda.Stream()

    def step(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            a = x.sin()
            total.add_(a)  # first
        b = x.exp()
        if right:
            current.wait_stream(side)
        total.addcmul_(b, b)  # second
        current.wait_stream(side)
        return a, b

    return step, (numbers(4, 6, device=device),)


@entry
def optimizer_does_not_wait_for_gradients(device, right=False):
    weight = numbers(6, 6, device=device).requires_grad_()
    optimizer, side = torch.optim.SGD([weight], lr=0.1), torch.cuda.Stream()

    def step(x):
        optimizer.zero_grad()
        current = torch.cuda.current_stream()
        loss = (x @ weight).sum()  # first
        side.wait_stream(current)
        loss.backward()
        if right:
            side.wait_stream(current)
        with torch.cuda.stream(side):
            optimizer.step()  # second
        current.wait_stream(side)
        return loss

    return step, (numbers(4, 6, device=device),)


@entry
def static_output_is_read_too_early(device, right=False):
    static, side = numbers(4, 6, device=device), torch.cuda.Stream()

    def step(x):
        current = torch.cuda.current_stream()
        y = x.exp()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            static.copy_(y)  # first
        z = y.cos()
        if right:
            current.wait_stream(side)
        out = z - static  # second
        current.wait_stream(side)
        return out

    return step, (numbers(4, 6, device=device),)


@entry
def join_is_missing_in_backward(device, right=False):
    weight, side = numbers(6, 6, device=device).requires_grad_(), torch.cuda.Stream()

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                of_weight = x.t() @ gradient  # first
            of_x = gradient @ weight.t()
            if right:
                current.wait_stream(side)
            of_weight = of_weight.clamp(-1, 1)  # second
            current.wait_stream(side)
            return of_x, of_weight

    def step(x):
        weight.grad = None
        Linear.apply(x.sin(), weight).square().sum().backward()
        return weight.grad

    return step, (numbers(4, 6, device=device),)


@entry
def one_of_three_streams_is_not_joined(device, right=False):
    weights = [numbers(6, 6, device=device) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in range(3)]

    def step(x):
        current = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        with torch.cuda.stream(streams[0]):
            query = (x @ weights[0]).sin()
        with torch.cuda.stream(streams[1]):
            key = (x @ weights[1]).cos()
        with torch.cuda.stream(streams[2]):
            value = x @ weights[2]
            value = value.tanh()  # first
        current.wait_stream(streams[0])
        current.wait_stream(streams[1])
        scores = torch.softmax(query @ key.t(), -1)
        if right:
            current.wait_stream(streams[2])
        out = scores @ value  # second
        current.wait_stream(streams[2])
        return out * 2

    return step, (numbers(4, 6, device=device),)


@entry
def event_is_recorded_too_early(device, right=False):
    side = torch.cuda.Stream()

    def step(x):
        current, done = torch.cuda.current_stream(), torch.cuda.Event()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            a = x.exp()
            if not right:
                done.record()
            b = a.cos()  # first
            if right:
                done.record()
        c = x * 3
        current.wait_event(done)
        out = c - b  # second
        current.wait_stream(side)
        return out, a

    return step, (numbers(4, 6, device=device),)


@entry
def cache_is_read_before_it_is_written(device, right=False):
    cache, side = numbers(16, 6, device=device), torch.cuda.Stream()
    position = torch.zeros(1, dtype=torch.long, device=device)

    def step(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            key = x.tanh()
            cache.index_copy_(0, position, key)  # first
        query = x * 0.5
        if right:
            current.wait_stream(side)
        scores = query @ cache.t()  # second
        current.wait_stream(side)
        position.add_(1)
        return torch.softmax(scores, -1)

    return step, (numbers(1, 6, device=device),)
