"""The number of drafted tokens follows the acceptance rate."""

import torch
from torch import nn


class Drafter(nn.Module):
    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocabulary)
        self.num_draft_tokens = 4

    def forward(self, token, state, drafts):
        for index in range(self.num_draft_tokens):  # guilty: as often as at the capture
            state = self.cell(self.embed(token), state)
            token = self.head(state).argmax(-1)
            drafts[:, index] = token
        return state


class Speculation:
    def __init__(self, drafter, rows):
        self.drafter = drafter
        self.token = torch.zeros(rows, dtype=torch.long, device="cuda")
        self.state = torch.zeros(rows, 16, device="cuda")
        self.drafts = torch.full((rows, 4), -1, device="cuda")

    @torch.no_grad()
    def capture(self):
        self.drafter(self.token, self.state, self.drafts)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.last = self.drafter(self.token, self.state, self.drafts)

    def propose(self, token, state):
        self.token.copy_(token)
        self.state.copy_(state)
        self.drafts.fill_(-1)
        self.graph.replay()
        return self.drafts.clone()

    def feedback(self, accepted, proposed):
        if accepted < proposed // 2:
            self.drafter.num_draft_tokens = max(  # guilty: the graph still drafts four
                1, self.drafter.num_draft_tokens - 1
            )


speculation = Speculation(Drafter().cuda().eval(), 3)
speculation.capture()
for _ in range(5):
    drafts = speculation.propose(torch.randint(0, 40, (3,)), torch.randn(3, 16))
    target = torch.randint(0, 40, (3, 4), device="cuda")
    matches = ((drafts == target).cumprod(1) * (drafts >= 0)).sum().item()
    speculation.feedback(matches, int((drafts >= 0).sum()))
