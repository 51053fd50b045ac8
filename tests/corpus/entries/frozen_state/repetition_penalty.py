import torch


def repetition_penalty(device):
    def penalise(logits, seen):
        score = logits.gather(1, seen)
        score = torch.where(score < 0, score * 1.2, score / 1.2)
        return logits.scatter(1, seen, score)

    return penalise, (torch.randn(2, 64, device=device), torch.randint(64, (2, 8), device=device))
