"""Side streams, events, and who waits for whom."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def two_branches_joined(device):
    a, b = nn.Linear(16, 16, device=device), nn.Linear(16, 16, device=device)
    side = torch.cuda.Stream()

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right = b(x)
        left = a(x)
        torch.cuda.current_stream().wait_stream(side)
        return left + right

    return forward, (torch.randn(8, 16, device=device),)


def side_stream_without_fork(device):
    side = torch.cuda.Stream()

    def forward(x):
        y = x * 2
        with torch.cuda.stream(side):
            z = y + 1  # guilty: this stream is not part of the capture
        torch.cuda.current_stream().wait_stream(side)
        return z

    return forward, (torch.randn(8, 16, device=device),)


def side_stream_never_joined(device):
    side = torch.cuda.Stream()  # guilty: the stream below is never joined
    log = torch.zeros(16, device=device)

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())  # guilty: forked and never joined
        with torch.cuda.stream(side):
            log.add_(x.mean(0))  # guilty: its work is not joined at the end
        return x * 2

    return forward, (torch.randn(8, 16, device=device),)


def event_pair(device):
    side = torch.cuda.Stream()

    def forward(x):
        ready = torch.cuda.Event()
        ready.record()
        side.wait_event(ready)
        with torch.cuda.stream(side):
            norm = x.square().sum(-1)
            done = torch.cuda.Event()
            done.record(side)
        y = x.relu()
        done.wait()
        return y / norm[:, None]

    return forward, (torch.randn(8, 16, device=device),)


def waits_for_the_device(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        torch.cuda.synchronize()  # guilty: the host waits for the device
        return y

    return forward, (torch.randn(8, 16, device=device),)


def waits_for_its_stream(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        torch.cuda.current_stream().synchronize()  # guilty: the host waits for a stream
        return y

    return forward, (torch.randn(8, 16, device=device),)


def times_with_events(device):
    model = nn.Linear(16, 16, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []

    def forward(x):
        start.record()
        y = model(x)
        end.record()
        end.synchronize()  # guilty: the host waits for an event
        times.append(start.elapsed_time(end))  # guilty: reads a time while capturing
        return y

    return forward, (torch.randn(8, 16, device=device),)


def polls_an_event(device):
    model = nn.Linear(16, 16, device=device)
    done = torch.cuda.Event()

    def forward(x):
        y = model(x)
        done.record()
        if done.query():  # guilty: an event of a capture cannot be queried
            y = y + 0
        return y

    return forward, (torch.randn(8, 16, device=device),)


def reads_before_the_join(device):
    side = torch.cuda.Stream()

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x
            for _ in range(40):
                y = torch.sin(y @ x.T) @ x
        z = y + 1  # guilty: the side stream may still be writing y
        torch.cuda.current_stream().wait_stream(side)
        return z

    return forward, (torch.randn(512, 512, device=device),)


def overwrites_what_the_side_reads(device):
    side = torch.cuda.Stream()
    buffer = torch.zeros(512, 512, device=device)

    def forward(x):
        buffer.copy_(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x
            for _ in range(40):
                y = torch.sin(y @ x.T) @ x
            y = y + buffer
        buffer.zero_()  # guilty: the side stream has not read it yet
        torch.cuda.current_stream().wait_stream(side)
        return y

    return forward, (torch.randn(512, 512, device=device),)


def overwrites_after_the_join(device):
    side = torch.cuda.Stream()
    buffer = torch.zeros(64, 64, device=device)

    def forward(x):
        buffer.copy_(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = buffer.square().sum(0)
        z = x @ x
        torch.cuda.current_stream().wait_stream(side)
        buffer.zero_()
        return y + z

    return forward, (torch.randn(64, 64, device=device),)


def three_streams_in_a_chain(device):
    streams = [torch.cuda.Stream() for _ in range(3)]

    def forward(x):
        last = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(last)
            with torch.cuda.stream(stream):
                x = torch.tanh(x) * 1.1
            last = stream
        torch.cuda.current_stream().wait_stream(last)
        return x

    return forward, (torch.randn(8, 16, device=device),)


def generic_stream_class(device):
    side = torch.Stream(device="cuda")

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with side:
            y = x.exp()
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    return forward, (torch.randn(8, 16, device=device),)


def generic_events(device):
    side = torch.Stream(device="cuda")
    ready, done = torch.Event(device="cuda"), torch.Event(device="cuda")

    def forward(x):
        ready.record()
        side.wait_event(ready)
        with side:
            y = x.exp()
            done.record(side)
        z = x.relu()
        torch.cuda.current_stream().wait_event(done)
        return y + z

    return forward, (torch.randn(8, 16, device=device),)


def generic_stream_records(device):
    side = torch.Stream(device="cuda")

    def forward(x):
        main = torch.accelerator.current_stream()
        side.wait_event(main.record_event())
        with torch.cuda.stream(side):
            y = x.exp()
        z = x.relu()
        side.record_event().wait(main)
        return y + z

    return forward, (torch.randn(8, 16, device=device),)


def current_stream_of_the_accelerator(device):
    side = torch.Stream(device=device)

    def forward(x):
        main = torch.accelerator.current_stream()
        side.wait_stream(main)
        with side:
            y = x.exp()
        z = x.relu()
        main.wait_stream(side)
        return y + z

    return forward, (torch.randn(8, 16, device=device),)


def stream_of_another_library(device):
    owner = torch.cuda.Stream()
    side = torch.cuda.ExternalStream(owner.cuda_stream)

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.exp()
        torch.cuda.current_stream().wait_stream(owner)
        return y + 1

    return forward, (torch.randn(8, 16, device=device),)


def generic_stream_without_fork(device):
    side = torch.Stream(device="cuda")

    def forward(x):
        y = x * 2
        with side:
            return y + 1  # guilty: this stream is not part of the capture

    return forward, (torch.randn(8, 16, device=device),)


def generic_stream_never_joined(device):
    side = torch.Stream(device="cuda")  # guilty: the stream below is never joined
    log = torch.zeros(16, device=device)

    def forward(x):
        side.wait_stream(torch.accelerator.current_stream())  # guilty: forked and never joined
        with side:
            log.add_(x.mean(0))  # guilty: its work is not joined at the end
        return x * 2

    return forward, (torch.randn(8, 16, device=device),)


def generic_stream_is_read_too_early(device):
    side = torch.Stream(device="cuda")

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with side:
            y = x
            for _ in range(40):
                y = torch.sin(y @ x.T) @ x
        z = y + 1  # guilty: the side stream may still be writing y
        torch.cuda.current_stream().wait_stream(side)
        return z

    return forward, (torch.randn(512, 512, device=device),)


def waits_for_the_accelerator(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        torch.accelerator.synchronize()  # guilty: the host waits for the device
        return y

    return forward, (torch.randn(8, 16, device=device),)


def waits_by_the_device_module(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        torch.get_device_module().synchronize()  # guilty: the host waits for the device
        return y

    return forward, (torch.randn(8, 16, device=device),)


def waits_for_a_generic_stream(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        torch.accelerator.current_stream().synchronize()  # guilty: the host waits for a stream
        return y

    return forward, (torch.randn(8, 16, device=device),)


def polls_a_generic_event(device):
    model = nn.Linear(16, 16, device=device)
    done = torch.Event(device="cuda")

    def forward(x):
        y = model(x)
        done.record()
        if done.query():  # guilty: an event of a capture cannot be queried
            y = y + 0
        return y

    return forward, (torch.randn(8, 16, device=device),)


def works_on_the_default_stream(device):
    def forward(x):
        y = x * 2
        with torch.cuda.stream(torch.cuda.default_stream()):
            return y + 1  # guilty: the default stream is not part of the capture

    return forward, (torch.randn(8, 16, device=device),)


def high_priority_stream(device):
    side = torch.cuda.Stream(priority=-1)

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.cumsum(0)
        torch.cuda.current_stream().wait_stream(side)
        return y.flip(0)

    return forward, (torch.randn(8, 16, device=device),)


def record_stream_on_a_join(device):
    side = torch.cuda.Stream()

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.square()
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        return y.sum(0)

    return forward, (torch.randn(8, 16, device=device),)


def waits_for_earlier_work(device):
    uploaded = torch.cuda.Event()
    side = torch.cuda.Stream()
    table = torch.zeros(16, device=device)
    with torch.cuda.stream(side):
        table.add_(1)
        uploaded.record()

    def forward(x):
        torch.cuda.current_stream().wait_event(uploaded)  # guilty: recorded outside the capture
        return x + table

    return forward, (torch.randn(8, 16, device=device),)


def copies_on_a_side_stream(device):
    host = torch.randn(8, 16).pin_memory()
    static = torch.zeros(8, 16, device=device)
    side = torch.cuda.Stream()

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            static.copy_(host, non_blocking=True)
        y = x.relu()
        torch.cuda.current_stream().wait_stream(side)
        return y + static

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_computes(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        out = []
        helper = threading.Thread(target=lambda: out.append(model(x)))  # guilty: its own stream
        helper.start()
        helper.join()
        return out[0]  # guilty: nothing of it is in the graph

    return forward, (torch.randn(8, 16, device=device),)


def pool_of_threads_computes(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        with ThreadPoolExecutor(2) as pool:
            halves = list(pool.map(model, x.chunk(2)))  # guilty: on the threads' own streams
        return torch.cat(halves)  # guilty: nothing of the halves is in the graph

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_joins_the_capture(device):
    weight = torch.randn(16, 16, device=device)

    def forward(x):
        stream, out = torch.cuda.current_stream(), []

        def work():
            with torch.cuda.stream(stream):
                out.append(x @ weight)

        helper = threading.Thread(target=work)
        helper.start()
        helper.join()
        return out[0].relu()

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_has_a_forked_stream(device):
    weight = torch.randn(16, 16, device=device)
    side = torch.cuda.Stream()

    def forward(x):
        out = []
        side.wait_stream(torch.cuda.current_stream())

        def work():
            with torch.cuda.stream(side):
                out.append(x @ weight)

        helper = threading.Thread(target=work)
        helper.start()
        y = x.relu()
        helper.join()
        torch.cuda.current_stream().wait_stream(side)
        return out[0] + y

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_waits(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        helper = threading.Thread(target=torch.cuda.synchronize)
        helper.start()  # guilty: what it runs is not permitted in any thread
        helper.join()  # guilty: a fair answer too
        return y

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_reads_the_norm(device):
    model = nn.Linear(16, 16, device=device)
    norms = []

    def forward(x):
        y = model(x)

        def log():
            norms.append(x.norm().item())  # guilty: not permitted in any thread

        helper = threading.Thread(target=log)
        helper.start()
        helper.join()
        return y

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_pins_the_next_batch(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        def load():
            torch.zeros(1 << 20).pin_memory()  # guilty: not permitted in any other thread

        helper = threading.Thread(target=load)
        helper.start()
        y = model(x)
        helper.join()
        return y

    return forward, (torch.randn(8, 16, device=device),)


def helper_thread_formats(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        names = []
        helper = threading.Thread(target=lambda: names.append(f"linear {tuple(x.shape)}"))
        helper.start()
        y = model(x)
        helper.join()
        return y * len(names)

    return forward, (torch.randn(8, 16, device=device),)


def nvtx_ranges(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        with torch.cuda.nvtx.range("linear"), torch.profiler.record_function("linear"):
            return model(x)

    return forward, (torch.randn(8, 16, device=device),)


def asks_whether_it_is_captured(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        if not torch.cuda.is_current_stream_capturing():
            assert torch.isfinite(y).all()
        return y

    return forward, (torch.randn(8, 16, device=device),)


def other_result_while_capturing(device):
    model = nn.Linear(16, 16, device=device)

    def forward(x):
        y = model(x)
        if torch.cuda.is_current_stream_capturing():  # guilty: another path
            return y  # guilty: eager returns something else
        return y.relu()  # guilty: a replay returns something else

    return forward, (torch.randn(8, 16, device=device),)
