"""Random numbers of the host and of the device, generators, seeds, clocks."""

import logging
import math
import random
import time
from datetime import datetime

import numpy as np
import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger(__name__)


def mixup_with_python_random(device):
    model = nn.Linear(8, 4, device=device)

    def loss(x, y):
        lam = random.betavariate(0.4, 0.4)  # guilty: drawn once, on the host
        mixed = lam * x + (1 - lam) * x.flip(0)  # guilty: the same coefficient in every replay
        return functional.cross_entropy(model(mixed), y)

    return loss, (torch.randn(8, 8, device=device), torch.randint(4, (8,), device=device))


def mixup_on_device(device):
    model = nn.Linear(8, 4, device=device)

    def loss(x, y):
        lam = torch.rand((), device=device)
        mixed = lam * x + (1 - lam) * x.flip(0)
        return functional.cross_entropy(model(mixed), y)

    return loss, (torch.randn(8, 8, device=device), torch.randint(4, (8,), device=device))


def layerdrop(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)

    def forward(x):
        for layer in layers:
            if random.random() < 0.3:  # guilty: the layers of the capture are dropped for ever
                continue
            x = x + layer(x).relu()
        return x

    return forward, (torch.randn(4, 8, device=device),)


def stochastic_depth_by_tensor(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)

    def forward(x):
        for layer in layers:
            keep = torch.empty((x.shape[0], 1), device=x.device).bernoulli_(0.7)
            x = x + keep * layer(x).relu() / 0.7
        return x

    return forward, (torch.randn(4, 8, device=device),)


def random_crop_with_numpy(device):
    conv = nn.Conv2d(3, 4, 3, padding=1, device=device)
    rng = np.random.default_rng(0)

    def forward(images):
        top, left = rng.integers(0, 8, size=2)  # guilty: the crop is chosen on the host
        return conv(images[:, :, top : top + 24, left : left + 24])  # guilty: always the same crop

    return forward, (torch.randn(2, 3, 32, 32, device=device),)


def random_flip_on_device(device):
    conv = nn.Conv2d(3, 4, 3, padding=1, device=device)

    def forward(images):
        flip = torch.rand(images.shape[0], 1, 1, 1, device=images.device) < 0.5
        return conv(torch.where(flip, images.flip(-1), images))

    return forward, (torch.randn(2, 3, 16, 16, device=device),)


def one_in_a_hundred(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        y = model(x)
        if random.random() < 0.01:  # guilty: a rare branch, which no replay ever takes
            y = y + x
        return y

    return forward, (torch.randn(4, 8, device=device),)


def shuffles_its_blocks(device):
    blocks = [nn.Linear(8, 8, device=device) for _ in range(5)]

    def forward(x):
        order = list(range(5))
        random.shuffle(order)  # guilty: the order of the capture stays
        for i in order:
            x = torch.tanh(blocks[i](x))
        return x

    return forward, (torch.randn(4, 8, device=device),)


def shuffled_once(device):
    blocks = [nn.Linear(8, 8, device=device) for _ in range(5)]
    random.Random(3).shuffle(blocks)

    def forward(x):
        for block in blocks:
            x = torch.tanh(block(x))
        return x

    return forward, (torch.randn(4, 8, device=device),)


def noise_from_the_host(device):
    def denoise(x):
        noise = torch.randn(x.shape)
        return x - 0.1 * noise.to(device)  # guilty: copies pageable memory

    return denoise, (torch.randn(2, 8, device=device),)


def reseeds_for_each_call(device):
    def augment(x):
        torch.manual_seed(1234)  # guilty: sets the seed of a generator that is captured
        return x + 0.1 * torch.randn_like(x)

    return augment, (torch.randn(2, 8, device=device),)


def keeps_and_restores_the_rng_state(device):
    def augment(x):
        # PyTorch 2.11 permits both calls in a capture. But a graph whose random ops add up to no
        # offset gets no new seed before a replay (CUDAGeneratorState::replay_prologue).
        before = torch.cuda.get_rng_state()
        y = x + 0.1 * torch.randn_like(x)
        torch.cuda.set_rng_state(before)  # guilty: every replay draws what the first one drew
        return y

    return augment, (torch.randn(2, 8, device=device),)


def generator_of_its_own(device):
    generator = torch.Generator(device=device).manual_seed(7)

    def sample(logits):
        noise = torch.rand(logits.shape, generator=generator, device=logits.device)
        return (logits - (-noise.log()).log()).argmax(-1)

    return sample, (torch.randn(4, 16, device=device),)


def new_generator_in_each_call(device):
    def sample(logits):
        generator = torch.Generator(device=device)  # guilty: no graph knows this generator
        noise = torch.rand(logits.shape, generator=generator, device=device)  # guilty: it is new
        return (logits - (-noise.log()).log()).argmax(-1)

    return sample, (torch.randn(4, 16, device=device),)


def host_generator_chooses_an_index(device):
    table = torch.randn(16, 8, device=device)
    generator = torch.Generator().manual_seed(0)

    def pick(x):
        row = int(torch.randint(16, (), generator=generator))  # guilty: a host generator chooses
        return x * table[row]  # guilty: the row of the capture

    return pick, (torch.randn(2, 8, device=device),)


def anneals_by_wall_clock(device):
    model = nn.Linear(8, 8, device=device)
    start = time.monotonic()

    def forward(x):
        elapsed = time.monotonic() - start  # guilty: the clock of the host
        return model(x) * math.exp(-elapsed / 60)  # guilty: the factor of the capture

    return forward, (torch.randn(4, 8, device=device),)


def stops_at_a_deadline(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)
    deadline = time.time() + 3600

    def forward(x):
        for block in blocks:
            if time.time() > deadline:  # guilty: asked once, while capturing
                break
            x = x + block(x)
        return x

    return forward, (torch.randn(4, 8, device=device),)


def measures_itself(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        start = time.perf_counter()
        y = model(x)
        log.debug("launched in %.3f ms", (time.perf_counter() - start) * 1e3)
        return y

    return forward, (torch.randn(4, 8, device=device),)


def hour_of_day_feature(device):
    model = nn.Linear(9, 4, device=device)

    def forward(x):
        now = datetime.now()  # guilty: the time of the capture
        second = torch.full((4, 1), now.microsecond / 1e6, device=x.device)  # guilty: it is frozen
        return model(torch.cat([x, second], 1))

    return forward, (torch.randn(4, 8, device=device),)


def day_of_the_build(device):
    offset = datetime.now().timetuple().tm_yday / 366
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        return model(x + offset)

    return forward, (torch.randn(4, 8, device=device),)


def dropout_in_training(device):
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4)).to(device)
    return model.train(), (torch.randn(4, 8, device=device, requires_grad=True),)


def dropout_rate_from_a_schedule(device):
    model = nn.Linear(8, 8, device=device)
    rates = iter(torch.linspace(0.0, 0.5, 10_000).tolist())

    def forward(x):
        rate = next(rates)  # guilty: a number from an iterator
        return functional.dropout(model(x), rate, training=True)  # guilty: the rate of the capture

    return forward, (torch.ones(64, 8, device=device),)


def gumbel_softmax_sampling(device):
    def sample(logits):
        return functional.gumbel_softmax(logits, tau=0.5, hard=True)

    return sample, (torch.randn(4, 16, device=device, requires_grad=True),)


def permutes_the_batch(device):
    def forward(x):
        order = torch.randperm(x.shape[0], device=x.device)
        return x + x[order]

    return forward, (torch.randn(8, 4, device=device),)


def random_projection_each_call(device):
    def project(x):
        matrix = torch.empty(8, 4, device=x.device).normal_(0, 0.5)
        return x @ matrix

    return project, (torch.randn(4, 8, device=device),)


def poisson_noise(device):
    def corrupt(x):
        return torch.poisson(x.abs() * 10) / 10

    return corrupt, (torch.rand(4, 8, device=device),)


def fork_rng_around_noise(device):
    def corrupt(x):
        # As in `keeps_and_restores_the_rng_state`.
        with torch.random.fork_rng(devices=[0]):  # guilty: every replay draws what the first drew
            return x + torch.randn_like(x)

    return corrupt, (torch.randn(4, 8, device=device),)


def starts_from_a_kept_state(device):
    state = torch.cuda.get_rng_state()

    def corrupt(x):
        torch.cuda.set_rng_state(state)  # guilty: a replay does not set it
        return x + torch.randn_like(x)

    return corrupt, (torch.randn(4, 8, device=device),)


def draws_the_same_noise_twice(device):
    def both_ways(x):
        before = torch.cuda.get_rng_state()
        up = x + torch.randn_like(x)
        torch.cuda.set_rng_state(before)
        down = x - torch.randn_like(x)
        return up, down

    return both_ways, (torch.randn(4, 8, device=device),)


def forks_around_what_is_not_random(device):
    def corrupt(x):
        with torch.random.fork_rng(devices=[0]):
            y = x.tanh()
        return y + torch.randn_like(x)

    return corrupt, (torch.randn(4, 8, device=device),)
