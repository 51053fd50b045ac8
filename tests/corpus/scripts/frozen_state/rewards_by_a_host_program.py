"""Policy gradient on text: a graph samples, a Python program judges, a second graph learns."""

import itertools

import torch
from torch import nn

VOWELS = set("aeiou")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Writer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(26, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, 26)

    def forward(self, letter, hidden):
        hidden = self.cell(self.embed(letter), hidden)
        return self.head(hidden), hidden


def reward(word):
    alternating = sum((a in VOWELS) != (b in VOWELS) for a, b in itertools.pairwise(word))
    return alternating / (len(word) - 1)


torch.manual_seed(0)
batch, length = 16, 6
model = Writer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
words = torch.zeros(batch, length, dtype=torch.int64, device="cuda")
rewards = torch.zeros(batch, device="cuda")


@torch.no_grad()
def sample():
    letter = torch.zeros(batch, dtype=torch.int64, device="cuda")
    hidden = torch.zeros(batch, 32, device="cuda")
    for i in range(length):
        logits, hidden = model(letter, hidden)
        noise = torch.empty_like(logits).exponential_()
        letter = (logits.softmax(-1) / noise).argmax(-1)
        words[:, i].copy_(letter)


def learn():
    optimizer.zero_grad(set_to_none=True)
    letter = torch.zeros(batch, dtype=torch.int64, device="cuda")
    hidden, logprobs = torch.zeros(batch, 32, device="cuda"), []
    for i in range(length):
        logits, hidden = model(letter, hidden)
        letter = words[:, i]
        logprobs.append(logits.log_softmax(-1).gather(1, letter[:, None]))
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    loss = -(torch.cat(logprobs, 1).sum(1) * advantage).mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        sample()
        learn()
torch.cuda.current_stream().wait_stream(side)
sampling, learning = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(sampling):
    sample()
with torch.cuda.graph(learning, pool=sampling.pool()):
    loss = learn()

for step in range(10):
    sampling.replay()
    texts = ["".join(LETTERS[i] for i in row) for row in words.tolist()]
    rewards.copy_(torch.tensor([reward(text) for text in texts]))
    learning.replay()
    print(step, texts[0], rewards.mean().item())
