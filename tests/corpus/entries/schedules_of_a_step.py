"""Values that change from step to step, kept in many ways."""

import enum
import math
import weakref

import torch
from torch import nn
from torch.nn import functional


class EulerScheduler:
    order = 1

    def __init__(self, n, device):
        self.sigmas = torch.linspace(10.0**0.5, 0.0, n + 1, device=device).square()
        self._step_index = None

    @property
    def step_index(self):
        return self._step_index

    def step(self, model_output, sample):
        if self.step_index is None:
            self._step_index = 0
        sigma = self.sigmas[self.step_index]
        sigma_next = self.sigmas[self.step_index + 1]
        denoised = sample - sigma * model_output
        derivative = (sample - denoised) / sigma
        self._step_index = (self._step_index + 1) % (
            len(self.sigmas) - 1
        )  # guilty: the index of the step is on the host
        return sample + derivative * (sigma_next - sigma)


def euler_step(device):
    torch.manual_seed(0)
    unet = nn.Conv2d(3, 3, 3, padding=1).to(device).requires_grad_(False)
    scheduler = EulerScheduler(50, device)
    latents = torch.randn(1, 3, 8, 8, device=device)

    @torch.no_grad()
    def denoise(x):
        return scheduler.step(unet(x), x)

    return denoise, (latents,)


class Callback:
    def on_step_begin(self, trainer): ...
    def on_step_end(self, trainer): ...


class DropoutAnneal(Callback):
    def __init__(self, module, total):
        self.module, self.total = module, total

    def on_step_begin(self, trainer):
        self.module.p = max(0.0, 0.5 * (1 - trainer.global_step / self.total))


class Trainer:
    def __init__(self, model, callbacks, device):
        self.model, self.callbacks, self.global_step = model, callbacks, 0
        self.x, self.y = torch.randn(8, 10, device=device), torch.randint(3, (8,), device=device)
        self.opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def training_step(self):
        for callback in self.callbacks:
            callback.on_step_begin(self)
        self.opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(
            self.model(self.x), self.y
        )  # guilty: the rate of the dropout changes
        loss.backward()
        self.opt.step()
        self.global_step += 1  # guilty: the step is counted on the host
        for callback in self.callbacks:
            callback.on_step_end(self)
        return loss


def dropout_annealed_by_a_callback(device):
    torch.manual_seed(0)
    drop = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), drop, nn.Linear(16, 3)).to(device)
    return Trainer(model, [Callback(), DropoutAnneal(drop, 10_000)], device).training_step


def temperatures(start=5.0, rate=0.9):
    value = start
    while True:
        yield value
        value = max(0.5, value * rate)


def temperature_from_a_generator(device):
    torch.manual_seed(0)
    schedule = temperatures()
    proj = nn.Linear(8, 6).to(device)

    def gumbel_head(x):
        tau = next(schedule)  # guilty: the next temperature comes from a generator
        return nn.functional.gumbel_softmax(
            proj(x), tau=tau
        )  # guilty: the temperature is another one

    return gumbel_head, (torch.randn(4, 8, device=device),)


calls = weakref.WeakKeyDictionary()


def warm_scale(module):
    calls[module] = calls.get(module, 0) + 1  # guilty: calls are counted on the host
    return min(1.0, calls[module] / 500)


class ReZero(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, d)

    def forward(self, x):
        return x + warm_scale(self) * torch.tanh(
            self.fc(x)
        )  # guilty: the scale changes with the calls


def scale_by_calls_of_a_module(device):
    torch.manual_seed(0)
    net = nn.Sequential(ReZero(4), ReZero(4)).to(device)
    return net, (torch.randn(3, 4, device=device),)


class Phase(enum.Enum):
    DISCRIMINATOR = "d"
    GENERATOR = "g"

    @property
    def other(self):
        return Phase.GENERATOR if self is Phase.DISCRIMINATOR else Phase.DISCRIMINATOR


class Gan:
    def __init__(self, device):
        self.g, self.d = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
        self.opts = {
            Phase.GENERATOR: torch.optim.SGD(self.g.parameters(), lr=0.01),
            Phase.DISCRIMINATOR: torch.optim.SGD(self.d.parameters(), lr=0.01),
        }
        self.real = torch.randn(8, 6, device=device)
        self.device = device
        self.phase = Phase.DISCRIMINATOR

    def step(self):
        opt = self.opts[self.phase]
        opt.zero_grad(set_to_none=True)
        fake = self.g(torch.randn(8, 4, device=self.device))
        match self.phase:  # guilty: the phase changes with every call
            case Phase.DISCRIMINATOR:
                loss = self.d(fake.detach()).mean() - self.d(self.real).mean()
            case Phase.GENERATOR:
                loss = -self.d(fake).mean()
        loss.backward()
        opt.step()
        self.phase = self.phase.other  # guilty: the phase changes with every call
        return loss.detach()


def phases_of_a_gan(device):
    torch.manual_seed(0)
    return Gan(device).step


class DeviceSchedule(nn.Module):
    def __init__(self, base, warmup, total):
        super().__init__()
        self.register_buffer("step_count", torch.zeros((), dtype=torch.int64))
        self.base, self.warmup, self.total = base, warmup, total

    def advance(self):
        self.step_count += 1
        t = self.step_count.float()
        cosine = 0.5 * (
            1 + torch.cos(math.pi * ((t - self.warmup) / (self.total - self.warmup)).clamp(0, 1))
        )
        return self.base * torch.where(t < self.warmup, t / self.warmup, cosine)


def schedule_on_the_device(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Mish(), nn.Linear(8, 1)).to(device)
    schedule = DeviceSchedule(0.1, 10, 100).to(device)
    momenta = [torch.zeros_like(p) for p in model.parameters()]
    x, y = torch.randn(16, 4, device=device), torch.randn(16, 1, device=device)

    def step():
        loss = nn.functional.smooth_l1_loss(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            lr = schedule.advance()
            for p, g, m in zip(model.parameters(), grads, momenta, strict=True):
                m.mul_(0.9).add_(g)
                p.sub_(lr * m)
        return loss

    return step


def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(
        -math.log(max_period) * torch.arange(half, dtype=torch.float32, device=t.device) / half
    )
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], -1)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.a, self.b = (
            nn.Linear(8, 4),
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 1, 3, padding=1),
        )

    def forward(self, x, t):
        return self.b(
            nn.functional.silu(self.a(x) + self.time(timestep_embedding(t, 8))[:, :, None, None])
        )


class DDIM:
    def __init__(self, steps=5, train=100):
        self.timesteps = list(range(train - 1, -1, -train // steps))
        betas = [1e-4 + (0.02 - 1e-4) * i / (train - 1) for i in range(train)]
        self.bar, acc = [], 1.0
        for beta in betas:
            acc *= 1 - beta
            self.bar.append(acc)

    def __iter__(self):
        for i, t in enumerate(self.timesteps):
            before = self.bar[self.timesteps[i + 1]] if i + 1 < len(self.timesteps) else 1.0
            yield t, self.bar[t], before


def sampling_loop_of_five_steps(device):
    torch.manual_seed(0)
    unet, ddim = Unet().to(device).eval(), DDIM()

    @torch.no_grad()
    def sample(noise):
        x = noise
        for t, bar, before in ddim:
            eps = unet(x, torch.full((x.shape[0],), t, device=x.device, dtype=torch.long))
            x0 = ((x - math.sqrt(1 - bar) * eps) / math.sqrt(bar)).clamp(-1, 1)
            x = math.sqrt(before) * x0 + math.sqrt(1 - before) * eps
        return x

    return sample, (torch.randn(2, 1, 8, 8, device=device),)


def net(width):
    return nn.Sequential(
        nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 5)
    )


def teacher_in_eval_student_in_train(device):
    torch.manual_seed(0)
    teacher, student = net(32).to(device), net(8).to(device)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.randn(16, 8, device=device), torch.randint(5, (16,), device=device)
    T = 3.0

    def step():
        teacher.eval()
        student.train()
        with torch.no_grad():
            soft = functional.softmax(teacher(x) / T, -1)
        logits = student(x)
        loss = functional.kl_div(
            functional.log_softmax(logits / T, -1), soft, reduction="batchmean"
        ) * T * T + functional.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def logs_a_loss_on_request(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(device)
    settings = {"verbose": False, "steps": 0}
    history = []

    def step(x):
        loss = model(x).square().mean()
        settings["steps"] += 1
        if settings["verbose"]:
            history.append(loss.item())
        return loss

    return step, (torch.ones(2, 4, device=device),)


class Log:
    def __init__(self, every):
        self.every, self.calls, self.lines, self.best = every, 0, [], float("inf")

    def is_due(self):
        self.calls += 1
        return self.calls % self.every == 0


def step_with(device, look):
    model, log = nn.Linear(4, 4).to(device), Log(1000)

    def step(x):
        loss = model(x).square().mean()
        look(log, loss)
        return loss

    return step, (torch.ones(2, 4, device=device),)


def keeps_a_number_now_and_then(device):
    def look(log, loss):
        if log.is_due():  # guilty: a step that keeps the number cannot be captured
            log.lines.append(float(loss.detach()))

    return step_with(device, look)


def writes_a_line_now_and_then(device):
    def look(log, loss):
        if log.is_due():  # guilty: as above, with a text
            log.lines.append(f"{log.calls}: {loss:.3f}")

    return step_with(device, look)


def compares_with_the_best_now_and_then(device):
    def look(log, loss):
        if log.is_due():  # guilty: as above, with a comparison
            log.lines.append("better" if loss.detach() < log.best else "worse")

    return step_with(device, look)


def asserts_finite_losses_now_and_then(device):
    def look(log, loss):
        if log.is_due():  # guilty: as above, with an assertion
            assert torch.isfinite(loss).all()

    return step_with(device, look)


def notes_a_shape_now_and_then(device):
    def look(log, loss):
        if log.is_due() and loss is not None and torch.is_floating_point(loss):
            log.lines.append((log.calls, str(loss.dtype), float(loss.numel()), bool(loss.shape)))

    return step_with(device, look)
