"""Optimizers as papers publish them: trust ratios, sharpness, preconditioners, sparse rows."""

import copy

import torch
from torch import nn


def _classifier(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5)).to(device)


def _batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 16, device=device), torch.randint(5, (8,), device=device)


class BranchingLamb(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["exp_avg"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                update = state["exp_avg"] / state["exp_avg_sq"].sqrt().add(group["eps"])
                update.add_(p, alpha=group["weight_decay"])
                weight_norm = p.norm().clamp(0, 10)
                adam_norm = update.norm()
                if weight_norm == 0 or adam_norm == 0:  # guilty: branch on a norm of the device
                    trust = 1.0
                else:
                    trust = weight_norm / adam_norm
                p.sub_(update * trust * group["lr"])


def lamb_branches_on_norms(device):
    model = _classifier(device)
    x, y = _batch(device)
    opt = BranchingLamb(model.parameters())

    def step():
        opt.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class WhereLamb(BranchingLamb):
    """The trust ratio is selected by torch.where, and the moments are made by the first step."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            one = torch.ones((), device=group["params"][0].device)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["exp_avg"].lerp_(p.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                update = state["exp_avg"] / state["exp_avg_sq"].sqrt().add_(group["eps"])
                update.add_(p, alpha=group["weight_decay"])
                weight_norm, update_norm = p.norm(2.0), update.norm(2.0)
                trust = torch.where(
                    weight_norm > 0,
                    torch.where(update_norm > 0, weight_norm / update_norm, one),
                    one,
                )
                p.add_(update.mul_(trust.clamp_(max=10.0)), alpha=-group["lr"])


def lamb_selects_by_where(device):
    model = _classifier(device)
    x, y = _batch(device)
    opt = WhereLamb(model.parameters())

    def step():
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class AssigningSAM:
    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho = list(params), base, rho
        self.old = {}

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm(p=2) for p in self.params]).norm(p=2)
        scale = self.rho / (norm + 1e-12)
        for p in self.params:
            self.old[p] = p.data.clone()
            p.add_(p.grad * scale)
            p.grad.zero_()

    @torch.no_grad()
    def second_step(self):
        for p in self.params:
            p.data = self.old[p]  # guilty: the weights move to the copy that was just made
        self.base.step()
        for p in self.params:
            p.grad.zero_()


def sam_restores_by_assignment(device):
    model = _classifier(device)
    x, y = _batch(device)
    sam = AssigningSAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1))

    def step():
        first = nn.functional.cross_entropy(model(x), y)  # guilty: reads the weights that moved
        first.backward()
        sam.first_step()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        sam.second_step()
        return loss.detach()

    return step


def sam_takes_the_step_back(device):
    """The perturbation is subtracted again: the dictionary changes, the weights stay in place."""
    model = _classifier(device)
    x, y = _batch(device)
    params = list(model.parameters())
    base = torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)
    perturbations = {}

    def step():
        base.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in params]).norm()
            for p in params:
                perturbations[p] = p.grad * (0.05 / (norm + 1e-12))
                p.add_(perturbations[p])
        base.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in params:
                p.sub_(perturbations.pop(p))
        base.step()
        return loss.detach()

    return step


def shampoo_takes_inverse_roots(device):
    weight = nn.Parameter(torch.randn(6, 10, device=device))
    x, y = torch.randn(12, 10, device=device), torch.randn(12, 6, device=device)
    left, right = 1e-3 * torch.eye(6, device=device), 1e-3 * torch.eye(10, device=device)

    def inverse_root(matrix):
        values, vectors = torch.linalg.eigh(matrix)  # guilty: its error code is read on the host
        return vectors @ torch.diag(values.clamp(min=1e-6).pow(-0.25)) @ vectors.T

    def step():
        loss = nn.functional.mse_loss(x @ weight.T, y)
        (grad,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            left.addmm_(grad, grad.T)
            right.addmm_(grad.T, grad)
            weight.sub_(0.1 * inverse_root(left) @ grad @ inverse_root(right))
        return loss.detach()

    return step


def muon_for_hidden_matrices(device):
    """Muon for matrices and SGD for the rest: neither keeps a number that changes."""
    model = _classifier(device)
    x, y = _batch(device)
    muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.02)
    rest = torch.optim.SGD([p for p in model.parameters() if p.ndim < 2], lr=0.01, momentum=0.9)

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        muon.zero_grad()
        rest.zero_grad()
        loss.backward()
        for optimizer in (muon, rest):
            optimizer.step()
        return loss.detach()

    return step


def sparse_adam_for_item_rows(device):
    items = nn.Embedding(50, 8, sparse=True).to(device)
    users = torch.randn(16, 8, device=device)
    ids = torch.randint(50, (16,), device=device)
    opt = torch.optim.SparseAdam(items.parameters(), lr=0.01)

    def step():
        opt.zero_grad()
        loss = -nn.functional.logsigmoid((users * items(ids)).sum(-1)).mean()
        loss.backward()
        opt.step()  # guilty: coalescing the sparse gradient counts its distinct rows on the host
        return loss.detach()

    return step


def adagrad_with_decaying_rate(device):
    model = _classifier(device)
    x, y = _batch(device)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05, lr_decay=0.1)  # guilty: see below

    def step():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()  # guilty: the rate follows from a step counter on the CPU
        return loss.detach()

    return step


def steps_inside_backward(device):
    """Each parameter is updated by a hook when its gradient is there, which is then dropped."""
    model = _classifier(device)
    x, y = _batch(device)
    moments = {p: torch.zeros_like(p) for p in model.parameters()}

    @torch.no_grad()
    def lion(p):
        moment = moments[p]
        p.mul_(1 - 1e-4).add_(torch.sign(moment * 0.9 + p.grad * 0.1), alpha=-1e-3)
        moment.lerp_(p.grad, 0.01)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lion)

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return step


def average_on_another_stream(device):
    """The averaged weights are updated beside the next forward; their decay is on the device."""
    model = _classifier(device)
    average = copy.deepcopy(model).requires_grad_(False)
    x, y = _batch(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    updates = torch.zeros((), device=device)
    side = torch.cuda.Stream()

    def step():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            updates.add_(1)
            decay = torch.clamp((1 + updates) / (10 + updates), max=0.999)
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)
        accuracy = (model(x).argmax(-1) == y).float().mean()
        torch.cuda.current_stream().wait_stream(side)
        return loss.detach(), accuracy

    return step
