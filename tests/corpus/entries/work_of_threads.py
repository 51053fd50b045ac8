"""Numbers that other threads compute for the code: pools, queues, lists and events."""

import itertools
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import nn


class Warmup:
    def __init__(self):
        self.step = 0

    def factor(self):
        self.step += 1  # guilty: counts on the host
        return 0.1 if self.step < 1_500 else 0.01


def pool_counts_the_steps(device):
    model, warmup = nn.Linear(8, 8, device=device), Warmup()
    pool = ThreadPoolExecutor(1)

    def forward(x):
        factor = pool.submit(warmup.factor)
        return model(x) * factor.result()  # guilty: the factor of the capture

    return forward, (torch.randn(4, 8, device=device),)


def pool_computes_a_scale(device):
    model, heads = nn.Linear(8, 8, device=device), 4
    pool = ThreadPoolExecutor(2)

    def scale(width, power):
        return (width // heads) ** power

    def forward(x):
        futures = [pool.submit(scale, x.shape[-1], power) for power in (-0.5, 0.5)]
        wait(futures)
        down, up = (future.result() for future in futures)
        return model(x * down) * up

    return forward, (torch.randn(4, 8, device=device),)


def thread_draws_into_a_queue(device):
    model = nn.Linear(8, 8, device=device)

    def draw(answers):
        answers.put(2.0 if random.random() < 0.001 else 1.0)  # guilty: drawn on the host

    def forward(x):
        answers = queue.Queue()
        threading.Thread(target=draw, args=(answers,)).start()
        return model(x) * answers.get()  # guilty: the number of the capture

    return forward, (torch.randn(4, 8, device=device),)


def threads_fill_a_queue(device):
    model, bounds = nn.Linear(8, 8, device=device), {"low": -1.0, "high": 1.0}

    def look_up(name, answers):
        answers.put((name, bounds[name]))

    def forward(x):
        answers = queue.Queue()
        for name in bounds:
            threading.Thread(target=look_up, args=(name, answers)).start()
        found = dict(answers.get() for _ in bounds)
        return model(x).clamp(found["low"], found["high"])

    return forward, (torch.randn(4, 8, device=device),)


def thread_looks_at_the_clock(device):
    model = nn.Linear(8, 8, device=device)

    def decay(since, out):
        late = time.monotonic() - since > 3600  # guilty: the time of the capture
        out.append(0.5 if late else 1.0)

    begun = time.monotonic()

    def forward(x):
        out = []
        helper = threading.Thread(target=decay, args=(begun, out))
        helper.start()
        helper.join()
        return model(x) * out[0]  # guilty: the factor of the capture

    return forward, (torch.randn(4, 8, device=device),)


def threads_append_to_a_list(device):
    model = nn.Linear(8, 8, device=device)
    weights = [0.5, 0.25, 0.25]

    def forward(x):
        parts = []
        threads = [
            threading.Thread(target=lambda w=w: parts.append(w * 2.0), daemon=True) for w in weights
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return model(x) * sum(parts)

    return forward, (torch.randn(4, 8, device=device),)


def event_guards_a_draft_length(device):
    tokens = itertools.count()
    head = nn.Linear(8, 32, device=device)

    def forward(x):
        plan, ready = {}, threading.Event()

        def choose():
            plan["length"] = 2 if next(tokens) < 1_500 else 4  # guilty: counts on the host
            ready.set()

        threading.Thread(target=choose).start()
        ready.wait()
        return head(x).topk(plan["length"]).indices  # guilty: the length of the capture

    return forward, (torch.randn(4, 8, device=device),)


def event_guards_a_plan(device):
    head = nn.Linear(8, 32, device=device)
    counts = {"calls": 0}

    def forward(x):
        plan, ready = {}, threading.Event()

        def choose():
            counts["calls"] += 1
            plan["calls"] = counts["calls"]
            plan["length"] = 2 if x.shape[0] < 16 else 4
            ready.set()

        threading.Thread(target=choose).start()
        assert ready.wait(5) and plan["calls"] > 0
        return head(x).topk(plan["length"]).indices

    return forward, (torch.randn(4, 8, device=device),)


class Calibrator(threading.Thread):
    """Finds a scale while the forward runs."""

    def __init__(self, bits):
        super().__init__()
        self.bits, self.scale = bits, None

    def run(self):
        self.scale = 1.0 / (2 ** (self.bits - 1) - 1)


def thread_keeps_a_scale(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        calibrator = Calibrator(8)
        calibrator.start()
        y = model(x)
        calibrator.join()
        return torch.round(y / calibrator.scale) * calibrator.scale

    return forward, (torch.randn(4, 8, device=device),)


def thread_keeps_fewer_bits_with_time(device):
    model, calls = nn.Linear(8, 8, device=device), [0]

    def forward(x):
        calls[0] += 1  # guilty: counts on the host
        calibrator = Calibrator(8 if calls[0] < 1_500 else 4)  # guilty: the bits of the capture
        calibrator.start()
        calibrator.join()
        return torch.round(model(x) / calibrator.scale)  # guilty: the scale of the capture

    return forward, (torch.randn(4, 8, device=device),)


def pool_maps_a_schedule(device):
    model, epoch = nn.Linear(8, 8, device=device), itertools.count()
    pool = ThreadPoolExecutor(2)

    def forward(x):
        now = next(epoch)  # guilty: counts on the host
        rates = list(pool.map(lambda base: base if now < 1_500 else base / 10, (0.1, 0.2)))
        return model(x) * rates[0] + x * rates[1]  # guilty: the rates of the capture

    return forward, (torch.randn(4, 8, device=device),)


def pool_maps_widths(device):
    model, pool = nn.Linear(8, 8, device=device), ThreadPoolExecutor(2)

    def forward(x):
        low, high = pool.map(lambda width: x.shape[-1] // width, (8, 2))
        return model(x)[:, low:high]

    return forward, (torch.randn(4, 8, device=device),)


def server_answers_from_a_table(device):
    requests, answers = queue.Queue(), queue.Queue()
    table = {4: 0.5, 8: 0.25}

    def serve():
        while True:
            answers.put(table[requests.get()])

    threading.Thread(target=serve, daemon=True).start()
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        requests.put(x.shape[-1])
        return model(x) * answers.get()

    return forward, (torch.randn(4, 8, device=device),)


def server_counts_its_answers(device):
    requests, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def serve():
        served = 0
        while True:
            rate = requests.get()
            served += 1  # guilty: counts on the host
            answers.put(rate if served < 1_500 else rate / 10)  # guilty: a rate that changes later

    threading.Thread(target=serve, daemon=True).start()
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        requests.put(0.1)
        return model(x) * answers.get()  # guilty: the rate of the capture

    return forward, (torch.randn(4, 8, device=device),)


def server_writes_a_dict(device):
    asked, answered, shared = threading.Event(), threading.Event(), {}

    def serve():
        while asked.wait():
            asked.clear()
            shared["scale"] = shared["width"] ** -0.5
            answered.set()

    threading.Thread(target=serve, daemon=True).start()
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        shared["width"] = x.shape[-1]
        asked.set()
        answered.wait()
        answered.clear()
        return model(x) * shared["scale"]

    return forward, (torch.randn(4, 8, device=device),)


class Annealing(threading.Thread):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def run(self):
        self.seen.append(None)  # guilty: grows on the host
        self.rate = 1.0 if len(self.seen) < 1_500 else 0.5


def thread_with_a_run_of_its_own(device):
    model, seen = nn.Linear(8, 8, device=device), []

    def forward(x):
        annealing = Annealing(seen)
        annealing.start()
        annealing.join()
        return model(x) * annealing.rate  # guilty: the rate of the capture

    return forward, (torch.randn(4, 8, device=device),)
