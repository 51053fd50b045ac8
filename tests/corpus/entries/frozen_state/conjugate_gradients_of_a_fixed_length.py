import torch


def conjugate_gradients_of_a_fixed_length(device):
    def f(a, b):
        a = a @ a.t() + torch.eye(len(a), device=a.device)
        x, r = torch.zeros_like(b), b.clone()
        p, old = r.clone(), r.dot(r)
        for _ in range(4):
            ap = a @ p
            alpha = old / p.dot(ap)
            x = torch.addcmul(x, alpha, p)
            r -= alpha * ap
            new = r.dot(r)
            p.mul_(new / old).add_(r)
            old = new
        return x, old.sqrt()

    return f, (torch.randn(6, 6, device=device), torch.randn(6, device=device))
