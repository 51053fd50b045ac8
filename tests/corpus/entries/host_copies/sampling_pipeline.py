import math

import torch
from torch import nn


class LogitsProcessorList(list):
    def __call__(self, ids, scores):
        for processor in self:
            scores = processor(ids, scores)
        return scores


def repetition_penalty(penalty):
    def process(ids, scores):
        picked = scores.gather(1, ids)
        return scores.scatter(1, ids, torch.where(picked < 0, picked * penalty, picked / penalty))

    return process


def top_k(k):
    return lambda ids, s: s.masked_fill(s < s.topk(k)[0][..., -1, None], -math.inf)


def top_p(p):
    def process(ids, scores):
        ordered, index = scores.sort(descending=False)
        remove = ordered.softmax(-1).cumsum(-1) <= 1 - p
        remove[..., -1:] = False
        return scores.masked_fill(remove.scatter(1, index, remove), -math.inf)

    return process


def min_p(p):
    def process(ids, scores):
        scores = scores.clone()
        probs = scores.softmax(-1)
        scores[probs < p * probs.amax(-1, keepdim=True)] = -float("inf")
        return scores

    return process


def sampling_pipeline(device):
    torch.manual_seed(0)
    pipeline = LogitsProcessorList(
        [repetition_penalty(1.2), lambda i, s: s / 0.8, top_k(20), top_p(0.9), min_p(0.02)]
    )
    head = nn.Linear(8, 64).to(device)

    @torch.no_grad()
    def sample(hidden, ids):
        return torch.multinomial(pipeline(ids, head(hidden)).softmax(-1), num_samples=1)

    return sample, (torch.randn(3, 8, device=device), torch.randint(64, (3, 6), device=device))
