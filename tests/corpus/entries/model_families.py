"""GANs, reinforcement learning, graphs, diffusion samplers, mixtures of experts."""

import math
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional


def gan_both_sides(device):
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
    g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    d_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    real = torch.randn(16, 8, device=device)

    def step():
        fake = generator(torch.randn(16, 4, device=device))
        d_optimizer.zero_grad(set_to_none=True)
        d_loss = functional.softplus(critic(fake.detach())) + functional.softplus(-critic(real))
        d_loss.mean().backward()
        d_optimizer.step()
        g_optimizer.zero_grad(set_to_none=True)
        g_loss = functional.softplus(-critic(fake)).mean()
        g_loss.backward()
        g_optimizer.step()
        return g_loss.detach()

    return step


def gan_critic_five_times(device):
    generator = nn.Linear(4, 8, device=device)
    critic = nn.Linear(8, 1, device=device)
    g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    d_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    real = torch.randn(16, 8, device=device)
    iteration = [0]

    def step():
        fake = generator(torch.randn(16, 4, device=device))
        d_optimizer.zero_grad(set_to_none=True)
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        d_optimizer.step()
        iteration[0] += 1  # guilty: counted on the host
        if iteration[0] % 5 == 0:  # guilty: the generator is trained in all replays, or in none
            g_optimizer.zero_grad(set_to_none=True)
            (-critic(fake).mean()).backward()
            g_optimizer.step()

    return step


def gan_with_an_image_pool(device):
    generator = nn.Linear(4, 8, device=device)
    critic = nn.Linear(8, 1, device=device)
    pool = deque([torch.zeros(16, 8, device=device)], maxlen=8)

    def loss(z):
        fake = generator(z)
        old = random.choice(pool)  # guilty: chosen on the host
        pool.append(fake.detach())  # guilty: the pool does not grow in replays
        return (critic(fake) - critic(old)).mean()  # guilty: the sample of the capture

    return loss, (torch.randn(16, 4, device=device),)


def adaptive_augmentation(device):
    critic = nn.Linear(8, 1, device=device)
    state = {"p": 0.0}

    def loss(real):
        noise = torch.randn_like(real) * state["p"]
        out = critic(real + noise)  # guilty: p is a Python number that follows the sign
        state["p"] += 0.01 if out.sign().mean() > 0.6 else -0.01  # guilty: reads the sign
        return out.mean()

    return loss, (torch.randn(16, 8, device=device),)


def dqn_update(device):
    online, target = nn.Linear(4, 2, device=device), nn.Linear(4, 2, device=device)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.01)
    states, after = torch.randn(32, 4, device=device), torch.randn(32, 4, device=device)
    actions = torch.randint(2, (32, 1), device=device)
    rewards = torch.randn(32, device=device)
    done = torch.rand(32, device=device) < 0.1

    def step():
        with torch.no_grad():
            best = online(after).argmax(1, keepdim=True)
            goal = rewards + 0.99 * target(after).gather(1, best)[:, 0] * ~done
        loss = functional.smooth_l1_loss(online(states).gather(1, actions)[:, 0], goal)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.lerp_(new, 0.005)
        return loss.detach()

    return step


def dqn_hard_target_update(device):
    online, target = nn.Linear(4, 2, device=device), nn.Linear(4, 2, device=device)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.01)
    states, after = torch.randn(32, 4, device=device), torch.randn(32, 4, device=device)
    updates = 0

    def step():
        nonlocal updates
        loss = (online(states).amax(1) - 0.99 * target(after).amax(1).detach()).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        updates += 1  # guilty: counted on the host
        if updates % 500 == 0:  # guilty: no replay updates the target
            target.load_state_dict(online.state_dict())
        return loss.detach()

    return step


def epsilon_greedy_on_host(device):
    policy = nn.Linear(4, 3, device=device)
    epsilon = {"value": 1.0}

    @torch.no_grad()
    def act(states):
        epsilon["value"] = max(0.05, epsilon["value"] * 0.999)  # guilty: decays on the host
        explore = torch.rand(states.shape[0], device=device) < epsilon["value"]  # guilty: frozen
        random_actions = torch.randint(3, (states.shape[0],), device=device)
        return torch.where(explore, random_actions, policy(states).argmax(-1))

    return act, (torch.randn(256, 4, device=device),)


def epsilon_greedy_on_device(device):
    policy = nn.Linear(4, 3, device=device)
    epsilon = torch.ones((), device=device)

    @torch.no_grad()
    def act(states):
        epsilon.mul_(0.999).clamp_(min=0.05)
        explore = torch.rand(states.shape[0], device=device) < epsilon
        random_actions = torch.randint(3, (states.shape[0],), device=device)
        return torch.where(explore, random_actions, policy(states).argmax(-1))

    return act, (torch.randn(256, 4, device=device),)


def samples_from_a_categorical(device):
    policy = nn.Linear(4, 3, device=device)

    @torch.no_grad()
    def act(states):
        distribution = torch.distributions.Categorical(logits=policy(states), validate_args=False)
        action = distribution.sample()
        return action, distribution.log_prob(action)

    return act, (torch.randn(16, 4, device=device),)


def validates_its_distribution(device):
    policy = nn.Linear(4, 3, device=device)

    @torch.no_grad()
    def entropy(states):
        distribution = torch.distributions.Categorical(  # guilty: validates on the host
            logits=policy(states), validate_args=True
        )
        return distribution.entropy()

    return entropy, (torch.randn(16, 4, device=device),)


def gaussian_policy_loss(device):
    net = nn.Linear(4, 4, device=device)

    def loss(states, actions, advantage):
        mean, log_std = net(states).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
        return -(normal.log_prob(actions).sum(-1) * advantage).mean()

    inputs = torch.randn(16, 4), torch.randn(16, 2), torch.randn(16)
    return loss, tuple(each.to(device) for each in inputs)


def ppo_early_stop(device):
    net = nn.Linear(4, 2, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    states, old = torch.randn(16, 4, device=device), torch.randn(16, 2, device=device)

    def step():
        for _ in range(3):
            new = net(states).log_softmax(-1)
            kl = (old.log_softmax(-1) - new).mean()
            if kl > 0.02:  # guilty: stops by a value of the device
                break
            optimizer.zero_grad(set_to_none=True)
            (new * old).sum().backward()
            optimizer.step()

    return step


def discounted_returns(device):
    def returns(rewards, done):
        total = torch.zeros_like(rewards[0])
        out = []
        for reward, end in zip(rewards.flip(0), done.flip(0), strict=True):
            total = reward + 0.99 * total * ~end
            out.append(total)
        return torch.stack(out).flip(0)

    return returns, (torch.randn(8, 4, device=device), torch.rand(8, 4, device=device) < 0.1)


def replay_memory_of_tensors(device):
    memory = torch.randn(128, 4, device=device)
    net = nn.Linear(4, 1, device=device)

    def loss():
        index = torch.randint(128, (16,), device=device)
        return net(memory[index]).square().mean()

    return loss


def message_passing(device):
    update = nn.Linear(8, 8, device=device)

    def forward(x, edges):
        source, target = edges
        messages = update(x)[source]
        return torch.zeros_like(x).index_add(0, target, messages).relu()

    return forward, (torch.randn(10, 8, device=device), torch.randint(10, (2, 30), device=device))


def message_passing_with_unknown_size(device):
    update = nn.Linear(8, 8, device=device)

    def forward(x, edges):
        source, target = edges
        count = target.max() + 1
        out = torch.zeros(int(count), 8, device=x.device)  # guilty: the number of nodes is read
        return out.index_add(0, target, update(x)[source])

    return forward, (torch.randn(10, 8, device=device), torch.randint(10, (2, 30), device=device))


def attention_over_edges(device):
    project = nn.Linear(8, 8, device=device)

    def forward(x, edges):
        source, target = edges
        h = project(x)
        score = (h[source] * h[target]).sum(-1).exp()
        total = torch.zeros(10, device=x.device).index_add(0, target, score)
        weight = score / total[target]
        return torch.zeros_like(h).index_add(0, target, weight[:, None] * h[source])

    return forward, (torch.randn(10, 8, device=device), torch.randint(10, (2, 30), device=device))


def neighbours_of_each_node(device):
    def neighbours(adjacency, x):
        rows = []
        for i in range(4):
            index = adjacency[i].nonzero()[:, 0]  # guilty: as many as there are neighbours
            rows.append(x[index].mean(0))
        return torch.stack(rows)

    return neighbours, (torch.rand(4, 4, device=device) > 0.3, torch.randn(4, 8, device=device))


def self_loops_and_degrees(device):
    def normalise(adjacency):
        adjacency = adjacency + torch.eye(6, device=adjacency.device)
        scale = adjacency.sum(1).rsqrt()
        return scale[:, None] * adjacency * scale

    return normalise, (torch.rand(6, 6, device=device),)


def graph_readout_by_batch(device):
    def readout(x, batch):
        out = x.new_zeros(3, 8)
        return out.scatter_reduce(0, batch[:, None].expand_as(x), x, "amax", include_self=False)

    batch = torch.tensor([0, 0, 1, 1, 1, 2], device=device)
    return readout, (torch.randn(6, 8, device=device), batch)


def graph_readout_unknown_batch(device):
    def readout(x, batch):
        out = x.new_zeros(batch.max().item() + 1, 8)  # guilty: the number of graphs is read
        return out.index_add(0, batch, x)

    batch = torch.tensor([0, 0, 1, 1, 1, 2], device=device)
    return readout, (torch.randn(6, 8, device=device), batch)


def ddim_whole_loop(device):
    net = nn.Linear(9, 8, device=device)
    alphas = torch.linspace(0.99, 0.1, 5).tolist()

    @torch.no_grad()
    def sample(x):
        for i in reversed(range(1, 5)):
            t = torch.full((x.shape[0], 1), i / 5, device=x.device)
            noise = net(torch.cat([x, t], 1))
            clean = (x - (1 - alphas[i]) ** 0.5 * noise) / alphas[i] ** 0.5
            x = alphas[i - 1] ** 0.5 * clean + (1 - alphas[i - 1]) ** 0.5 * noise
        return x

    return sample, (torch.randn(4, 8, device=device),)


def ddim_one_step_by_number(device):
    net = nn.Linear(9, 8, device=device)
    alphas = torch.linspace(0.99, 0.1, 50).tolist()
    timesteps = iter([*reversed(range(1, 50))] * 1000)

    @torch.no_grad()
    def sample(x):
        i = next(timesteps)  # guilty: a timestep from an iterator
        t = torch.full((x.shape[0], 1), i / 50, device=x.device)  # guilty: frozen
        noise = net(torch.cat([x, t], 1))
        return (x - (1 - alphas[i]) ** 0.5 * noise) / alphas[i] ** 0.5

    return sample, (torch.randn(4, 8, device=device),)


def ddim_one_step_by_tensor(device):
    net = nn.Linear(9, 8, device=device)
    alphas = torch.linspace(0.99, 0.1, 50, device=device)

    @torch.no_grad()
    def sample(x, t):
        a = alphas[t]
        noise = net(torch.cat([x, (t / 50).expand(x.shape[0], 1)], 1))
        return (x - (1 - a).sqrt() * noise) / a.sqrt()

    return sample, (torch.randn(4, 8, device=device), torch.tensor([17], device=device))


def guidance_that_switches_off(device):
    net = nn.Linear(8, 8, device=device)
    progress = {"step": 0}

    @torch.no_grad()
    def denoise(x, condition):
        progress["step"] += 1  # guilty: counted on the host
        out = net(x + condition)
        if progress["step"] < 1000:  # guilty: replays guide for ever
            out = net(x) + 3 * (out - net(x))
        return out

    return denoise, (torch.randn(2, 8, device=device), torch.randn(2, 8, device=device))


def classifier_free_guidance(device):
    net = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def denoise(x, condition):
        both = net(torch.cat([x, x + condition]))
        plain, guided = both.chunk(2)
        return plain + 3 * (guided - plain)

    return denoise, (torch.randn(2, 8, device=device), torch.randn(2, 8, device=device))


def diffusion_training_loss(device):
    net = nn.Linear(9, 8, device=device)
    alphas = torch.linspace(0.99, 0.1, 50, device=device)

    def loss(x):
        t = torch.randint(50, (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        a = alphas[t, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        return functional.mse_loss(net(torch.cat([noisy, t[:, None] / 50], 1)), noise)

    return loss, (torch.randn(4, 8, device=device),)


def diffusion_training_loss_host_time(device):
    net = nn.Linear(9, 8, device=device)

    def loss(x):
        t = torch.randint(50, (x.shape[0], 1)) / 50
        noise = torch.randn_like(x)
        time = t.to(x.device)  # guilty: drawn on the host and copied from pageable memory
        return functional.mse_loss(net(torch.cat([x + time * noise, time], 1)), noise)

    return loss, (torch.randn(4, 8, device=device),)


def langevin_steps(device):
    energy = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        for _ in range(3):
            probe = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(energy(probe).square().sum(), probe)
            x.add_(slope, alpha=-0.01).add_(torch.randn_like(x), alpha=0.14)
        return x * 1.0

    return step


def dense_mixture_of_experts(device):
    gate = nn.Linear(8, 4, device=device)
    experts = nn.Parameter(torch.randn(4, 8, 8, device=device))

    def forward(x):
        weights, index = gate(x).softmax(-1).topk(2)
        dense = torch.zeros(x.shape[0], 4, device=x.device).scatter(1, index, weights)
        return torch.einsum("bi,eio,be->bo", x, experts, dense)

    return forward, (torch.randn(16, 8, device=device),)


def sparse_mixture_of_experts(device):
    gate = nn.Linear(8, 4, device=device)
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)

    def forward(x):
        chosen = gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows = torch.where(chosen == number)[0]  # guilty: the number of rows is read
            out = out.index_copy(0, rows, expert(x[rows]))
        return out

    return forward, (torch.randn(16, 8, device=device),)


def experts_hit_by_any_token(device):
    gate = nn.Linear(8, 4, device=device)
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)

    def forward(x):
        mask = functional.one_hot(gate(x).argmax(-1), num_classes=4)
        out = torch.zeros_like(x)
        hit = mask.sum(0).nonzero()  # guilty: the list of experts depends on data
        for number in hit:
            out = out + experts[number](x)
        return out

    return forward, (torch.randn(16, 8, device=device),)


def capacity_limited_experts(device):
    gate = nn.Linear(8, 4, device=device)
    experts = nn.Parameter(torch.randn(4, 8, 8, device=device))

    def forward(x):
        chosen = gate(x).argmax(-1)
        hot = (chosen[:, None] == torch.arange(4, device=x.device)).long()
        place = (hot.cumsum(0) * hot).amax(1) - 1
        kept = place < 6
        slot = chosen * 6 + place.clamp(0, 5)
        buffer = torch.zeros(24, 8, device=x.device).index_add(0, slot, x * kept[:, None])
        out = torch.bmm(buffer.view(4, 6, 8), experts).view(24, 8)
        return out[slot] * kept[:, None]

    return forward, (torch.randn(16, 8, device=device),)


def load_balancing_loss(device):
    gate = nn.Linear(8, 4, device=device)

    def loss(x):
        p = gate(x).softmax(-1)
        share = torch.zeros(4, device=x.device).index_add(0, p.argmax(-1), x.new_ones(16)) / 16
        return 4 * (share * p.mean(0)).sum()

    return loss, (torch.randn(16, 8, device=device),)


def router_noise_by_step(device):
    gate = nn.Linear(8, 4, device=device)
    step = [0]

    def route(x):
        step[0] += 1  # guilty: counted on the host
        scale = math.exp(-step[0] / 2000)
        return (gate(x) + scale * torch.randn(16, 4, device=x.device)).softmax(-1)  # guilty: frozen

    return route, (torch.randn(16, 8, device=device),)


def self_distillation_teacher(device):
    student, teacher = nn.Linear(8, 4, device=device), nn.Linear(8, 4, device=device)
    center = torch.zeros(4, device=device)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    x = torch.randn(16, 8, device=device)

    def step():
        with torch.no_grad():
            target = teacher(x)
            goal = ((target - center) / 0.04).softmax(-1)
        loss = -(goal * (student(x) / 0.1).log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            center.lerp_(target.mean(0), 0.1)
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.004)
        return loss.detach()

    return step


def momentum_of_the_teacher_rises(device):
    student, teacher = nn.Linear(8, 4, device=device), nn.Linear(8, 4, device=device)
    x = torch.randn(16, 8, device=device)
    step_number = [0]

    def step():
        step_number[0] += 1  # guilty: counted on the host
        momentum = 1 - 0.5 * (math.cos(math.pi * min(step_number[0], 8) / 8) + 1) / 2
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.mul_(momentum).add_(new, alpha=1 - momentum)  # guilty: frozen momentum
        return teacher(x).detach()

    return step


def memory_queue_of_keys(device):
    encoder = nn.Linear(8, 4, device=device)
    queue = torch.randn(32, 4, device=device)
    pointer = torch.zeros((), dtype=torch.long, device=device)
    offsets = torch.arange(8, device=device)

    def loss(x):
        keys = functional.normalize(encoder(x), dim=1)
        logits = keys @ queue.clone().T / 0.07
        queue.index_copy_(0, (pointer + offsets) % 32, keys.detach())
        pointer.add_(8)
        return logits.logsumexp(1).mean()

    return loss, (torch.randn(8, 8, device=device),)


def memory_queue_python_pointer(device):
    encoder = nn.Linear(8, 4, device=device)
    queue = torch.randn(32, 4, device=device)
    state = {"pointer": 0}

    def loss(x):
        keys = functional.normalize(encoder(x), dim=1)
        logits = keys @ queue.clone().T / 0.07
        at = state["pointer"]
        queue[at : at + 8] = keys.detach()  # guilty: always the same rows
        state["pointer"] = (at + 8) % 32  # guilty: counted on the host
        return logits.logsumexp(1).mean()

    return loss, (torch.randn(8, 8, device=device),)
