"""Physics, reinforcement learning and graphs: solvers, rollouts, message passing."""

import collections
import math
import random

import torch
from torch import nn


class Wave(nn.Module):
    """Two time levels of a wave equation; the older one becomes the newer one."""

    def __init__(self, substeps, device):
        super().__init__()
        self.substeps = substeps
        x = torch.linspace(0, 1, 16, device=device)
        self.now = torch.sin(math.pi * x)
        self.before = torch.sin(math.pi * x) * 0.9


class WaveBySwap(Wave):
    def forward(self, force):
        for _ in range(self.substeps):
            lap = (
                torch.roll(self.now, 1) + torch.roll(self.now, -1) - 2 * self.now
            )  # guilty: of the capture
            self.before.neg_().add_(2 * self.now + 0.1 * lap + 0.01 * force)
            # Python swaps what the two objects hold. A replay writes to the same storage every
            # time, so the second replay continues from the wrong level: shown by the second call.
            torch.utils.swap_tensors(self.now, self.before)  # guilty: levels swap on the host
        return self.now.clone()  # guilty: the level that a replay returns is that of the capture


def wave_with_swapped_levels(device):
    return WaveBySwap(1, device), (torch.randn(16, device=device),)


class WaveByNames(Wave):
    def forward(self, force):
        for _ in range(self.substeps):
            lap = torch.roll(self.now, 1) + torch.roll(self.now, -1) - 2 * self.now
            self.before.neg_().add_(2 * self.now + 0.1 * lap + 0.01 * force)
            self.now, self.before = self.before, self.now
        return self.now.clone()


def wave_with_two_substeps(device):
    # An even number of swaps: after the call the names are where they were.
    return WaveByNames(2, device), (torch.randn(16, device=device),)


class Sweeps:
    """Symmetric Gauss-Seidel by colors: forth in one call, back in the next."""

    def __init__(self, device):
        self.order = [0, 1, 2]
        self.masks = [(torch.arange(12, device=device) % 3 == color).float() for color in range(3)]

    def __call__(self, u, rhs):
        for color in self.order:  # guilty: the direction of the sweep is that of the capture
            relaxed = 0.5 * (torch.roll(u, 1) + torch.roll(u, -1)) - rhs
            u = torch.lerp(u, relaxed, self.masks[color])
        # The order decides the result; eager alternates, a replay does not (second call).
        self.order.reverse()  # guilty: happens on the host only
        return u


def gauss_seidel_in_turns(device):
    return Sweeps(device), (torch.randn(12, device=device), torch.randn(12, device=device))


def rotation_by_matrix_exponential(device):
    def f(omega, points):
        zero = torch.zeros_like(omega[:, 0])
        rows = [
            torch.stack([zero, -omega[:, 2], omega[:, 1]], -1),
            torch.stack([omega[:, 2], zero, -omega[:, 0]], -1),
            torch.stack([-omega[:, 1], omega[:, 0], zero], -1),
        ]
        # The degree of the polynomial is chosen by the norm of each matrix, which is read on the
        # host (norm copied to the CPU, nonzero of the intervals): the capture is refused.
        return points @ torch.matrix_exp(torch.stack(rows, -2))  # guilty: reads norms

    return f, (torch.randn(4, 3, device=device), torch.randn(4, 5, 3, device=device))


def linear_dynamics_by_matrix_power(device):
    # The exponent is a Python number: the products are the same in every call.
    transition = torch.randn(4, 4, device=device) * 0.3

    def f(state, gain):
        ahead = torch.linalg.matrix_power(transition, 5)
        return torch.linalg.multi_dot([state, ahead, gain, transition])

    return f, (torch.randn(6, 4, device=device), torch.randn(4, 4, device=device))


def forces_by_forward_mode(device):
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)

    def potential(position):
        return net(position).squeeze(-1)

    def f(positions, directions):
        energy, slope = torch.func.jvp(potential, (positions,), (directions,))
        force = -torch.func.vmap(torch.func.jacrev(potential))(positions)
        return energy.detach(), slope.detach(), force.detach()

    return f, (torch.randn(5, 3, device=device), torch.randn(5, 3, device=device))


class NStepReturns:
    def __init__(self, device):
        self.rewards = collections.deque(
            (torch.zeros(4, device=device) for _ in range(3)), maxlen=3
        )

    def __call__(self, reward, bootstrap):
        # The deque holds other tensors after each call. A replay reads those that were in it at
        # capture; rewards of later calls never reach it. Shown by the second call.
        self.rewards.append(reward.clone())  # guilty: the host's queue does not move in a replay
        total = bootstrap * 0.99**3
        for power, past in enumerate(self.rewards):  # guilty: reads the tensors of the capture
            total = total + past * 0.99**power  # guilty: the queue of the capture is added up
        return total


def returns_of_a_deque(device):
    return NStepReturns(device), (torch.randn(4, device=device), torch.randn(4, device=device))


def actions_of_a_gaussian(device):
    policy = nn.Linear(6, 4).to(device)

    def f(observation):
        mean, log_std = policy(observation).detach().chunk(2, -1)
        # normal() with a tensor of deviations checks std.min() >= 0 with item() on every device.
        return torch.normal(mean, log_std.exp())  # guilty: checks the deviations on the host

    return f, (torch.randn(8, 6, device=device),)


def value_of_the_chosen_arm(device):
    def f(values, pulls):
        arm = (values.mean(0) + (2 / (1 + pulls)).sqrt()).argmax()
        # A 0-dim integer tensor as an index is read with item() (TensorIndexing.h).
        return values.t()[arm].sum()  # guilty: a device scalar as an index is read on the host

    return f, (torch.randn(8, 5, device=device), torch.rand(5, device=device))


class RingOfTransitions:
    def __init__(self, device):
        self.states = torch.zeros(16, 3, device=device)
        self.slot = torch.zeros(4, dtype=torch.long, device=device) + torch.arange(4, device=device)

    def __call__(self, batch):
        self.states.index_copy_(0, self.slot, batch)
        self.slot.add_(4).remainder_(16)
        picks = torch.randint(0, 16, (6,), device=batch.device)
        return self.states.index_select(0, picks).mean(0)


def replay_memory_with_a_device_pointer(device):
    # The write position is a tensor on the device: it moves in a replay.
    return RingOfTransitions(device), (torch.randn(4, 3, device=device),)


def advantages_backwards_in_time(device):
    def f(rewards, values, done):
        advantages, carried = [], torch.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            alive = 1 - done[t]
            delta = rewards[t] + 0.99 * values[t + 1] * alive - values[t]
            carried = delta + 0.99 * 0.95 * alive * carried
            advantages.insert(0, carried)
        stacked = torch.stack(advantages)
        drawdown = stacked.cumsum(0).cummax(0).values - stacked.cumsum(0)
        return stacked, drawdown

    rewards, values = torch.randn(5, 3, device=device), torch.randn(6, 3, device=device)
    return f, (rewards, values, (torch.rand(5, 3, device=device) < 0.2).float())


class Teacher:
    def __init__(self, device):
        self.student = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
        self.teacher = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)

    @torch.no_grad()
    def __call__(self, x):
        self.student(x)
        # Copies into the teacher's parameters and buffers in place, on the device.
        self.teacher.load_state_dict(self.student.state_dict())
        return self.teacher.eval()(x)


def target_network_loaded_in_the_step(device):
    return Teacher(device), (torch.randn(6, 4, device=device),)


def ring_of_random_edges(device):
    # The generator is made anew with the same seed in each call: the numbers are always the same.
    def f(nodes):
        picker = random.Random(7)
        out = nodes.clone()
        for _ in range(3):
            source, target = picker.randrange(6), picker.randrange(6)
            out[target] = torch.tanh(out[source] + nodes[target])
        return out

    return f, (torch.randn(6, 4, device=device),)


def adjacency_merged_by_coalesce(device):
    def f(source, target, weight, features):
        index = torch.stack([source, target])
        # coalesce() needs the number of distinct edges on the host to allocate them.
        adjacency = torch.sparse_coo_tensor(
            index, weight, (8, 8)
        ).coalesce()  # guilty: counts the edges
        return torch.sparse.mm(adjacency, features)

    source, target = torch.arange(12, device=device) % 8, torch.arange(12, device=device) % 5
    return f, (source, target, torch.rand(12, device=device), torch.randn(8, 3, device=device))


def pooled_segments_of_nodes(device):
    def f(nodes, sizes):
        # Without unsafe=True, min(lengths) and sum(lengths) are checked with item().
        return torch.segment_reduce(
            nodes, "mean", lengths=sizes, axis=0
        )  # guilty: reads the lengths

    return f, (torch.randn(10, 4, device=device), torch.tensor([3, 2, 5], device=device))
