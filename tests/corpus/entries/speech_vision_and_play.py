"""What speech, vision and game-playing teams run between a sensor and an action."""

from __future__ import annotations

import math

import torch
from torch import nn


class _Streaming(nn.Module):
    """A convolution over chunks of sound, with the end of the chunk before as its left context."""

    def __init__(self, channels=4, kernel=5):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.left = kernel - 1
        self.register_buffer("context", torch.zeros(1, channels, kernel - 1))

    def forward(self, chunk):
        full = torch.cat([self.context, chunk], dim=-1)  # guilty: as below
        self.context = full[..., -self.left :].clone()  # guilty: another tensor
        return self.conv(full).relu()


def left_context_is_another_tensor(device):
    return _Streaming().to(device).requires_grad_(False), (torch.randn(1, 4, 12, device=device),)


class _StreamingInPlace(_Streaming):
    def forward(self, chunk):
        full = torch.cat([self.context, chunk], dim=-1)
        self.context.copy_(full[..., -self.left :])
        return self.conv(full).relu()


def left_context_in_place(device):
    model = _StreamingInPlace().to(device).requires_grad_(False)
    return model, (torch.randn(1, 4, 12, device=device),)


class _Gate:
    """Voice activity with hysteresis: it opens above one level and closes below another."""

    def __init__(self, device):
        self.open = False
        self.gain = torch.zeros((), device=device)

    def __call__(self, frame):
        energy = frame.square().mean().sqrt()
        bound = 0.3 if self.open else 0.6
        self.open = bool(energy > bound)  # guilty: the host asks the device
        self.gain.lerp_(torch.full_like(self.gain, float(self.open)), 0.2)
        return frame * self.gain


def voice_gate_asks_the_energy(device):
    return _Gate(device), (torch.randn(160, device=device),)


class _DeviceGate:
    def __init__(self, device):
        self.open = torch.zeros((), dtype=torch.bool, device=device)
        self.gain = torch.zeros((), device=device)

    def __call__(self, frame):
        energy = frame.square().mean().sqrt()
        now = torch.where(self.open, energy > 0.3, energy > 0.6)
        self.open.copy_(now)
        self.gain.lerp_(now.to(self.gain.dtype), 0.2)
        return frame * self.gain


def voice_gate_stays_on_the_device(device):
    return _DeviceGate(device), (torch.randn(160, device=device),)


class _DeepCached(nn.Module):
    """DeepCache: the deep half of a denoiser runs on every third call only."""

    def __init__(self, width=8, interval=3):
        super().__init__()
        self.shallow, self.deep = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(2 * width, width)
        self.interval, self.calls = interval, 0
        self.register_buffer("features", torch.zeros(2, width), persistent=False)

    def forward(self, x):
        skip = self.shallow(x).relu()
        if self.calls % self.interval == 0:  # guilty: the call of the capture decides
            self.features.copy_(self.deep(skip).relu())
        self.calls += 1  # guilty: as above
        return x - 0.1 * self.last(torch.cat([skip, self.features], dim=1))


def deep_features_on_every_third_call(device):
    return _DeepCached().to(device).requires_grad_(False), (torch.randn(2, 8, device=device),)


class _Tracks:
    """Detections that match no track get the next identities."""

    def __init__(self, device, slots=6):
        self.identities = torch.full((slots,), -1, dtype=torch.int64, device=device)
        self.places = torch.zeros(slots, 2, device=device)
        self.issued = 0

    def update(self, boxes):
        distance = torch.cdist(boxes, self.places)
        nearest, slot = distance.min(1)
        known = nearest < 0.5
        fresh = torch.arange(boxes.shape[0], device=boxes.device) + self.issued  # guilty: frozen
        self.issued += boxes.shape[0]  # guilty: as above
        names = torch.where(known, self.identities[slot], fresh)
        self.identities[: boxes.shape[0]] = names
        self.places[: boxes.shape[0]] = boxes
        return names.clone()


def tracks_get_the_next_identities(device):
    return _Tracks(device).update, (torch.rand(4, 2, device=device),)


class _NumberedTracks:
    def __init__(self, device, slots=6):
        self.identities = torch.full((slots,), -1, dtype=torch.int64, device=device)
        self.places = torch.zeros(slots, 2, device=device)
        self.issued = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, boxes):
        nearest, slot = torch.cdist(boxes, self.places).min(1)
        fresh = ~(nearest < 0.5)
        order = fresh.cumsum(0) - 1 + self.issued
        self.issued += fresh.sum()
        names = torch.where(fresh, order, self.identities[slot])
        self.identities[: boxes.shape[0]] = names
        self.places[: boxes.shape[0]] = boxes
        return names.clone()


def tracks_are_numbered_on_the_device(device):
    return _NumberedTracks(device).update, (torch.rand(4, 2, device=device),)


def frames_are_stacked_by_a_tuple(device):
    """An Atari actor: the last four frames are a tuple, from which the oldest falls out."""
    net = nn.Sequential(nn.Conv2d(4, 2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).to(device)
    net(torch.zeros(1, 4, 8, 8, device=device))
    net.requires_grad_(False)
    frames = tuple(torch.zeros(8, 8, device=device) for _ in range(4))

    def act(frame):
        nonlocal frames
        _oldest, *rest = frames
        frames = (*rest, frame.clone())  # guilty: a tuple of other tensors
        return net(torch.stack(frames).unsqueeze(0)).argmax(-1)  # guilty: as above

    return act, (torch.rand(8, 8, device=device),)


class _Bandit:
    """Upper confidence bounds over the arms of a recommender."""

    def __init__(self, device, arms=5):
        self.pulls = torch.ones(arms, device=device)
        self.reward = torch.zeros(arms, device=device)
        self.total = arms

    def __call__(self, gains):
        bonus = (2 * math.log(self.total) / self.pulls).sqrt()  # guilty: the total of the capture
        arm = (self.reward / self.pulls + bonus).argmax().view(1)
        self.pulls.index_add_(0, arm, torch.ones(1, device=gains.device))
        self.reward.index_add_(0, arm, gains.gather(0, arm))
        self.total += 1  # guilty: as above
        return arm


def arms_are_chosen_by_a_host_total(device):
    return _Bandit(device), (torch.rand(5, device=device),)


class _DeviceBandit(_Bandit):
    def __call__(self, gains):
        bonus = (2 * self.pulls.sum().log() / self.pulls).sqrt()
        arm = (self.reward / self.pulls + bonus).argmax().view(1)
        self.pulls.index_add_(0, arm, torch.ones(1, device=gains.device))
        self.reward.index_add_(0, arm, gains.gather(0, arm))
        return arm


def arms_are_chosen_by_the_pulls(device):
    return _DeviceBandit(device), (torch.rand(5, device=device),)


def _returns(rewards, values, done, gamma=0.99, lam=0.95):
    advantage = torch.zeros_like(values[0])
    out = []
    for t in reversed(range(rewards.shape[0])):
        if done[t].all():  # guilty: the host asks whether all episodes ended
            advantage = torch.zeros_like(advantage)
        delta = rewards[t] + gamma * values[t + 1] * ~done[t] - values[t]
        advantage = delta + gamma * lam * advantage * ~done[t]
        out.append(advantage)
    return torch.stack(out[::-1])


def advantages_skip_ended_episodes(device):
    rewards, values = torch.randn(5, 3, device=device), torch.randn(6, 3, device=device)
    return _returns, (rewards, values, torch.rand(5, 3, device=device) < 0.3)


def advantages_of_a_fixed_horizon(device):
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)

    def advantages(states, rewards, done):
        with torch.no_grad():
            values = net(states).squeeze(-1)
        live = 1.0 - done.to(values.dtype)
        delta = rewards + 0.99 * values[1:] * live - values[:-1]
        out, running = torch.empty_like(delta), torch.zeros_like(delta[0])
        for t in range(rewards.shape[0] - 1, -1, -1):
            running = delta[t] + 0.99 * 0.95 * live[t] * running
            out[t] = running
        return (out - out.mean()) / (out.std() + 1e-8), out + values[:-1]

    states = torch.randn(6, 3, 4, device=device)
    rewards = torch.randn(5, 3, device=device)
    return advantages, (states, rewards, torch.rand(5, 3, device=device) < 0.3)


def boxes_are_suppressed_softly(device):
    """Soft-NMS: four rounds, each of which takes the best box and lowers its neighbors."""

    def suppress(boxes, scores):
        left, kept = scores.clone(), []
        area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
        for _ in range(4):
            best, index = left.max(0, keepdim=True)
            box = boxes.index_select(0, index)
            low = torch.maximum(boxes[:, :2], box[:, :2])
            high = torch.minimum(boxes[:, 2:], box[:, 2:])
            inter = (high - low).clamp(min=0).prod(1)
            union = area + area.index_select(0, index) - inter
            left.mul_(torch.exp(-(inter / (union + 1e-9)).square() / 0.5))
            left.index_fill_(0, index, 0.0)
            kept.append(torch.cat([box, best.unsqueeze(1)], dim=1))
        return torch.cat(kept)

    corner = torch.rand(8, 2, device=device)
    boxes = torch.cat([corner, corner + 0.5], dim=1)
    return suppress, (boxes, torch.rand(8, device=device))


class _Explorer(nn.Module):
    """Epsilon-greedy, where epsilon decays in a buffer and the dice are the device's."""

    def __init__(self, actions=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, actions))
        self.register_buffer("epsilon", torch.ones(()))

    @torch.no_grad()
    def forward(self, state):
        values = self.net(state)
        greedy = values.argmax(-1)
        other = torch.randint_like(greedy, values.shape[-1])
        explore = torch.rand(state.shape[0], device=state.device) < self.epsilon
        self.epsilon.mul_(0.995).clamp_(min=0.05)
        return torch.where(explore, other, greedy), values


def explores_with_the_dice_of_the_device(device):
    return _Explorer().to(device), (torch.randn(8, 6, device=device),)


class _Normalizer(nn.Module):
    """Log-mel frames, normalized by statistics that forget slowly (as in online recognition)."""

    def __init__(self, mels=8, window=64, hop=16):
        super().__init__()
        self.window_size, self.hop = window, hop
        self.register_buffer("window", torch.hann_window(window))
        self.register_buffer("filters", torch.rand(window // 2 + 1, mels))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(mels))
        self.register_buffer("spread", torch.ones(mels))

    @torch.inference_mode()
    def forward(self, sound):
        frames = sound.unfold(-1, self.window_size, self.hop) * self.window
        power = torch.fft.rfft(frames).abs().square()
        mels = (power @ self.filters).clamp(min=1e-6).log()
        self.seen.add_(mels.shape[0]).clamp_(max=300.0)
        share = mels.shape[0] / self.seen
        difference = mels.mean(0) - self.mean
        self.mean.addcmul_(share.expand_as(difference), difference)
        self.spread.add_(share * (mels.var(0) - self.spread))
        return (mels - self.mean) / (self.spread + 1e-3).sqrt()


def mel_frames_with_statistics_that_forget(device):
    with torch.inference_mode():
        return _Normalizer().to(device), (torch.randn(256, device=device),)
