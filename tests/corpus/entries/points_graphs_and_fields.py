"""Point clouds, graphs, radiance fields, molecules and images of the ground."""

import numpy
import torch
from torch import nn
from torch.nn import functional


class OccupancyField(nn.Module):
    """A small radiance field with a grid of occupied cells, which is refreshed now and then."""

    def __init__(self, cells=8, every=16):
        super().__init__()
        self.cells, self.every, self.iteration = cells, every, 0
        self.net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))
        axis = (torch.arange(cells) + 0.5) / cells
        centers = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), -1).view(-1, 3)
        self.register_buffer("centers", centers)
        self.register_buffer("density", torch.ones(cells**3))

    @torch.no_grad()
    def refresh(self):
        jitter = (torch.rand_like(self.centers) - 0.5) / self.cells
        fresh = self.net(self.centers + jitter)[:, 3].relu()
        self.density.copy_(torch.maximum(self.density * 0.95, fresh))

    def forward(self, points):
        if self.training:
            self.iteration += 1
            if self.iteration % self.every == 1:  # guilty: refreshed in each replay, or in none
                self.refresh()
        index = (points * self.cells).long().clamp(0, self.cells - 1)
        flat = (index[..., 0] * self.cells + index[..., 1]) * self.cells + index[..., 2]
        color, sigma = self.net(points).split([3, 1], -1)
        sigma = sigma.squeeze(-1).relu() * (self.density[flat] > 0.01)
        depth = sigma * 0.05
        alpha = 1 - torch.exp(-depth)
        light = torch.exp(depth - torch.cumsum(depth, -1))
        return ((alpha * light).unsqueeze(-1) * color.sigmoid()).sum(-2)


def occupancy_is_refreshed_now_and_then(device):
    torch.manual_seed(0)
    field = OccupancyField().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2, capturable=True)
    rays = torch.rand(16, 12, 3, device=device)
    target = torch.rand(16, 3, device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(field(rays), target)
        loss.backward()
        optimizer.step()
        return loss

    return step


class Convolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x, source, target):
        messages = self.others(x)[source]
        summed = x.new_zeros(x.shape[0], messages.shape[1]).index_add(0, target, messages)
        return self.own(x) + summed


class SparseEdges(nn.Module):
    """Drops a share of the edges in training, as DropEdge does."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, edges):
        if not self.training:
            return edges
        kept = torch.rand(edges.shape[1], device=edges.device) >= self.share
        return edges[:, kept]  # guilty: as many edges as were kept


def edges_are_dropped_in_training(device):
    torch.manual_seed(0)
    drop = SparseEdges(0.2)
    first, second = Convolution(12, 24).to(device), Convolution(24, 4).to(device)
    x = torch.randn(40, 12, device=device)
    edges = torch.randint(0, 40, (2, 150), device=device)
    labels = torch.randint(0, 4, (40,), device=device)
    parameters = [*first.parameters(), *second.parameters()]

    def step():
        source, target = drop(edges)
        hidden = first(x, source, target).relu()
        loss = functional.cross_entropy(second(hidden, source, target), labels)
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=False
        ):
            with torch.no_grad():
                parameter.sub_(gradient, alpha=0.1)
        return loss

    return step


class MaskedAutoregressor(nn.Module):
    """MADE that trains with several orders: each call goes on to the masks of the next one."""

    def __init__(self, inputs=10, hidden=32, orders=4):
        super().__init__()
        self.inputs, self.hidden, self.orders, self.seed = inputs, hidden, orders, 0
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, inputs)
        self.register_buffer("mask_in", torch.ones(hidden, inputs))
        self.register_buffer("mask_out", torch.ones(inputs, hidden))

    def update_masks(self):
        random = numpy.random.RandomState(self.seed)
        self.seed = (self.seed + 1) % self.orders
        order = random.permutation(self.inputs)
        degrees = random.randint(order.min(), self.inputs - 1, size=self.hidden)
        inner = (order[None, :] <= degrees[:, None]).astype(numpy.float32)
        outer = (degrees[None, :] < order[:, None]).astype(numpy.float32)
        self.mask_in.copy_(torch.from_numpy(inner))  # guilty: the masks of the captured order
        self.mask_out.copy_(torch.from_numpy(outer))  # guilty: the masks of the captured order

    def forward(self, x):
        self.update_masks()
        hidden = functional.linear(x, self.first.weight * self.mask_in, self.first.bias).relu()
        return functional.linear(hidden, self.second.weight * self.mask_out, self.second.bias)


def orders_of_the_variables_take_turns(device):
    torch.manual_seed(0)
    model = MaskedAutoregressor().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = (torch.rand(16, 10, device=device) > 0.5).float()

    def step():
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    return step


def farthest_points(points, count):
    """Indices of ``count`` points, each as far as possible from those before."""
    batch, total, _ = points.shape
    rows = torch.arange(batch, device=points.device)
    distance = points.new_full((batch, total), 1e10)
    chosen = torch.zeros(batch, count, dtype=torch.int64, device=points.device)
    latest = torch.zeros(batch, dtype=torch.int64, device=points.device)
    for i in range(count):
        chosen[:, i] = latest
        center = points[rows, latest].unsqueeze(1)
        distance = torch.minimum(distance, (points - center).square().sum(-1))
        latest = distance.argmax(-1)
    return chosen


class SetAbstraction(nn.Module):
    def __init__(self, count, neighbors, inputs, outputs):
        super().__init__()
        self.count, self.neighbors = count, neighbors
        self.mlp = nn.Sequential(nn.Linear(inputs + 3, outputs), nn.ReLU())

    def forward(self, points, features):
        rows = torch.arange(points.shape[0], device=points.device)[:, None]
        centers = points[rows, farthest_points(points.detach(), self.count)]
        near = torch.cdist(centers, points).topk(self.neighbors, largest=False).indices
        rows = rows.unsqueeze(-1)
        grouped = torch.cat([points[rows, near] - centers.unsqueeze(2), features[rows, near]], -1)
        return centers, self.mlp(grouped).amax(2)


def centers_that_are_far_apart(device):
    torch.manual_seed(0)
    first, second = SetAbstraction(16, 8, 4, 16), SetAbstraction(4, 4, 16, 32)
    head = nn.Linear(32, 3)
    for module in (first, second, head):
        module.to(device)

    def classify(points, features):
        points, features = first(points, features)
        _, features = second(points, features)
        return head(features.amax(1))

    return classify, (torch.rand(2, 64, 3, device=device), torch.randn(2, 64, 4, device=device))


class PersonalizedPropagation(nn.Module):
    """Predict, then propagate: ten steps of a random walk with restarts."""

    def __init__(self, inputs, classes, edges, nodes, steps=10, restart=0.1):
        super().__init__()
        self.predict = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, classes))
        self.steps, self.restart = steps, restart
        source, target = edges
        degree = torch.zeros(nodes).index_add_(0, target, torch.ones(target.shape[0]))
        norm = degree.clamp_min(1).rsqrt()
        self.register_buffer("source", source)
        self.register_buffer("target", target)
        self.register_buffer("weight", (norm[source] * norm[target]).unsqueeze(-1))

    def forward(self, x):
        start = self.predict(x)
        state = start
        for _ in range(self.steps):
            spread = torch.zeros_like(state)
            spread.index_add_(0, self.target, state[self.source] * self.weight)
            state = (1 - self.restart) * spread + self.restart * start
        return state.log_softmax(-1)


def walks_with_restarts(device):
    torch.manual_seed(0)
    model = PersonalizedPropagation(8, 3, torch.randint(0, 30, (2, 90)), 30).to(device)
    return model, (torch.randn(30, 8, device=device),)


class InteractionMemory(nn.Module):
    """A memory for each node of a graph in time; it learns only within one batch of events."""

    def __init__(self, nodes=50, width=16):
        super().__init__()
        self.update = nn.GRUCell(2 * width + 1, width)
        self.score = nn.Bilinear(width, width, 1)
        self.register_buffer("memory", torch.zeros(nodes, width))
        self.register_buffer("seen", torch.zeros(nodes))

    def forward(self, source, target, times):
        elapsed = (times - self.seen[source]).unsqueeze(-1)
        message = torch.cat([self.memory[source], self.memory[target], elapsed], -1)
        fresh = self.update(message, self.memory[source])
        logits = self.score(fresh, self.memory[target].clone()).squeeze(-1)
        self.memory[source] = fresh.detach()
        self.seen.scatter_reduce_(0, source, times, "amax")
        return logits


def memory_of_nodes_in_time(device):
    torch.manual_seed(0)
    model = InteractionMemory().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    source = torch.randperm(25)[:12].to(device)
    target = torch.randint(25, 50, (12,), device=device)
    times = torch.linspace(0, 1, 12, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        logits = model(source, target, times)
        loss = functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        loss.backward()
        optimizer.step()
        times.add_(1.0)
        return loss

    return step


class HashGrid(nn.Module):
    """Features at the corners of the cells of four grids, looked up by a hash."""

    def __init__(self, levels=4, size=256, features=2):
        super().__init__()
        self.size = size
        self.resolutions = [4 * 2**level for level in range(levels)]
        self.tables = nn.Parameter(torch.rand(levels, size, features) * 1e-2)
        self.register_buffer("corners", torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
        self.register_buffer("primes", torch.tensor([1, 2654435761]))

    def forward(self, x):
        encoded = []
        for table, resolution in zip(self.tables, self.resolutions, strict=False):
            scaled = x * resolution
            low = scaled.floor()
            corner = low.long().unsqueeze(1) + self.corners
            index = (corner[..., 0] * self.primes[0]) ^ (corner[..., 1] * self.primes[1])
            part = (scaled - low).unsqueeze(1)
            weight = torch.where(self.corners.bool(), part, 1 - part).prod(-1, keepdim=True)
            encoded.append((weight * table[index % self.size]).sum(1))
        return torch.cat(encoded, -1)


def image_in_hashed_grids(device):
    torch.manual_seed(0)
    model = nn.Sequential(HashGrid(), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-15, capturable=True)
    image = torch.rand(1, 3, 32, 32, device=device)

    def step():
        at = torch.rand(128, 2, device=device)
        color = functional.grid_sample(image, at.view(1, 1, -1, 2) * 2 - 1, align_corners=True)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(at), color[0, :, 0].T)
        loss.backward()
        optimizer.step()
        return loss

    return step


class FlowRefiner(nn.Module):
    """Optical flow: a recurrent unit corrects the flow a few times from a volume of matches."""

    def __init__(self, width=16, iterations=4):
        super().__init__()
        self.iterations = iterations
        self.encode = nn.Conv2d(3, width, 3, 2, 1)
        self.motion = nn.Conv2d(9 + 2, width, 3, padding=1)
        self.gates = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.candidate = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, 2, 3, padding=1)

    def lookup(self, first, second, flow):
        _, _, h, w = first.shape
        rows, columns = torch.meshgrid(
            torch.arange(h, device=flow.device), torch.arange(w, device=flow.device), indexing="ij"
        )
        base = torch.stack([columns, rows]).float() + flow
        size = torch.tensor([w - 1, h - 1], dtype=torch.float32).view(1, 2, 1, 1)
        costs = []
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                x = 2 * (base[:, 0] + dx) / (w - 1) - 1
                y = 2 * (base[:, 1] + dy) / (h - 1) - 1
                warped = functional.grid_sample(second, torch.stack([x, y], -1), align_corners=True)
                costs.append((first * warped).mean(1))
        assert size.numel() == 2 and len(costs) == 9
        return torch.stack(costs, 1)

    def forward(self, left, right):
        first, second = self.encode(left), self.encode(right)
        hidden, flow = torch.tanh(first), first.new_zeros(first.shape[0], 2, *first.shape[2:])
        for _ in range(self.iterations):
            flow = flow.detach()
            motion = self.motion(torch.cat([self.lookup(first, second, flow), flow], 1)).relu()
            update, reset = self.gates(torch.cat([hidden, motion], 1)).sigmoid().chunk(2, 1)
            candidate = self.candidate(torch.cat([reset * hidden, motion], 1)).tanh()
            hidden = (1 - update) * hidden + update * candidate
            flow = flow + self.head(hidden)
        return flow


def flow_is_refined_a_few_times(device):
    torch.manual_seed(0)
    model = FlowRefiner().to(device)
    return model, tuple(torch.rand(1, 3, 16, 24, device=device) for _ in range(2))
