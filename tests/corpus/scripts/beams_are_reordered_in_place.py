"""Beam search: the cache is reordered by a copy into itself, the score is kept on the device."""

import torch
from torch import nn

BEAMS, LENGTH, WIDTH, VOCABULARY = 3, 8, 4, 16
embed, head = nn.Embedding(VOCABULARY, WIDTH).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
cache = torch.zeros(BEAMS, LENGTH, WIDTH, device="cuda")
tokens = torch.zeros(BEAMS, dtype=torch.long, device="cuda")
scores = torch.zeros(BEAMS, device="cuda")
position = torch.zeros(1, dtype=torch.long, device="cuda")
history = torch.zeros(BEAMS, LENGTH, dtype=torch.long, device="cuda")


@torch.inference_mode()
def step():
    cache.index_copy_(1, position, embed(tokens)[:, None])
    logprobs = head(cache.sum(1)).log_softmax(-1)
    best, flat = (scores[:, None] + logprobs).flatten().topk(BEAMS)
    beam = flat // VOCABULARY
    cache.copy_(cache[beam])
    history.copy_(history[beam])
    tokens.copy_(flat % VOCABULARY)
    history.index_copy_(1, position, tokens[:, None])
    scores.copy_(best)
    position.add_(1)


step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for prompt in (1, 2):
    for state in (cache, scores, position, history):
        state.zero_()
    scores[1:] = -1e9
    tokens.fill_(prompt)
    for _i in range(LENGTH):
        graph.replay()
    print(history[scores.argmax()].tolist())
