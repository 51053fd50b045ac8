import torch


def min_p_with_noise_of_the_host(device):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)

    @torch.no_grad()
    def sample(logits):
        p = logits.softmax(-1)
        p = p.masked_fill(p < 0.05 * p.amax(-1, keepdim=True), 0.0)
        noise = torch.empty(p.shape).exponential_(generator=generator)  # <- rng-frozen-seed
        return (p / noise.to(p.device)).argmax(-1)  # <- h2d-pageable-copy

    return sample, (torch.randn(4, 50, device=device),)
