import torch


def vtrace_backwards_in_time(device):
    rewards, values = torch.randn(6, 4, device=device), torch.randn(7, 4, device=device)
    done = torch.rand(6, 4, device=device) < 0.2

    def targets(rewards, values, done):
        returns, last = [], torch.zeros_like(values[0])
        for t in reversed(range(rewards.shape[0])):
            alive = 0.99 * (~done[t]).float()
            delta = rewards[t] + alive * values[t + 1] - values[t]
            last = delta + alive * 0.95 * last
            returns.insert(0, last + values[t])
        return torch.stack(returns)

    return targets, (rewards, values, done)
