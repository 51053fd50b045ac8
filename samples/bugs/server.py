import torch
from torch import nn

import cgtool

SIZES = (32, 16, 8, 4, 2)
WIDTH = 64


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, tokens):
        x = self.tokens(tokens)
        return self.head(x + self.down(self.up(x).relu()))


class Server:
    """Decodes batches of up to 32 requests, each in the graph of the next captured size."""

    def __init__(self):
        self.model = Decoder().cuda().eval()
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs = {}
        for size in SIZES[:4]:
            self.capture(size)

    def capture(self, size):
        tokens = torch.zeros(size, dtype=torch.long, device="cuda")
        self.model(tokens)
        cgtool.note(batch=size)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            scores = self.model(tokens)
        self.graphs[size] = graph, tokens, scores

    def step(self, tokens):
        batch = len(tokens)
        cgtool.note(batch=batch)
        if batch > SIZES[0]:
            return self.model(tokens)
        size = min(size for size in SIZES if size >= batch)
        if size not in self.graphs:
            self.capture(size)
        graph, captured, scores = self.graphs[size]
        captured[:batch].copy_(tokens)
        graph.replay()
        return scores[:batch].clone()

    def load(self, weights):
        self.model.load_state_dict(weights, assign=True)


@torch.no_grad()
def main():
    torch.manual_seed(0)
    server, weights = Server(), Decoder().cuda().state_dict()
    cgtool.event("ready")
    for batch in (3, 7, 30, 12, 40, 2) * 5:
        server.step(torch.randint(1000, (batch,)).cuda())
    server.load(weights)
    cgtool.event("reloaded")
    for batch in (16, 5, 48, 9) * 5:
        scores = server.step(torch.randint(1000, (batch,)).cuda())
    print(scores.argmax(-1).tolist())


if __name__ == "__main__":
    main()
