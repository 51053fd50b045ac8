"""Speculative decoding: a draft graph runs several times, a verify graph accepts on the device."""

import torch
from torch import nn

VOCABULARY, WIDTH, AHEAD = 32, 8, 3


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return self.head(self.embed(ids))


class Speculative:
    def __init__(self, draft, target):
        self.draft, self.target = draft.eval(), target.eval()
        self.token = torch.zeros(1, dtype=torch.long, device="cuda")
        self.window = torch.zeros(AHEAD + 1, dtype=torch.long, device="cuda")
        self.accepted = torch.zeros((), dtype=torch.long, device="cuda")
        self.capture()

    def draft_step(self):
        self.token.copy_(self.draft(self.token).argmax(-1))

    def verify_step(self):
        choice = self.target(self.window).argmax(-1)
        agree = (choice[:-1] == self.window[1:]).long()
        self.accepted.copy_(agree.cumprod(0).sum())
        self.bonus = choice.index_select(0, self.accepted[None])

    @torch.inference_mode()
    def capture(self):
        for step in (self.draft_step, self.verify_step):
            step()
        torch.cuda.synchronize()
        self.draft_graph, self.verify_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.draft_graph):
            self.draft_step()
        with torch.cuda.graph(self.verify_graph, pool=self.draft_graph.pool()):
            self.verify_step()

    @torch.inference_mode()
    def generate(self, prompt, length):
        tokens = [prompt]
        while len(tokens) < length:
            self.token.fill_(tokens[-1])
            self.window[0] = tokens[-1]
            for i in range(AHEAD):
                self.draft_graph.replay()
                self.window[i + 1].copy_(self.token[0])
            self.verify_graph.replay()
            count = self.accepted.item()
            tokens += self.window[1 : 1 + count].tolist() + self.bonus.tolist()
        return tokens[:length]


engine = Speculative(Tiny().cuda(), Tiny().cuda())
print(engine.generate(3, 8), engine.generate(5, 6))
