import torch

BLOCK, BLOCKS, WIDTH = 16, 8, 64


class Engine:
    """Decodes up to four requests at once; each has a cache of up to 8 blocks of 16 tokens."""

    def __init__(self, batch):
        self.cache = torch.zeros(batch * BLOCKS * BLOCK, WIDTH, device="cuda")
        table = torch.arange(batch * BLOCKS, device="cuda")
        self.table = table.reshape(batch, BLOCKS)
        self.length = torch.zeros(batch, dtype=torch.long, device="cuda")
        self.token = torch.zeros(batch, WIDTH, device="cuda")
        self.project = torch.nn.Linear(WIDTH, WIDTH, device="cuda")

    @torch.no_grad()
    def decode(self):
        block = self.table.gather(1, (self.length // BLOCK)[:, None])
        slot = block[:, 0] * BLOCK + self.length % BLOCK
        self.cache.index_copy_(0, slot, self.project(self.token))
        self.length += 1
        return self.cache[slot].sum(-1)

    def start(self, row):
        self.length[row] = 0


engine = Engine(4)
engine.decode()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = engine.decode()

# Three requests of up to 50 tokens; the fourth row is padding.
for step in range(200):
    for row in range(3):
        if step % 50 == 10 * row:
            engine.start(row)
    engine.token.normal_()
    graph.replay()
print(out.tolist())
