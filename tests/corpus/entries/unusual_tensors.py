"""Sparse, nested, complex and quantised tensors, linear algebra, FFT."""

import torch
from torch import nn
from torch.nn import functional


def spectral_filter(device):
    mask = torch.linspace(1, 0, 33, device=device)

    def low_pass(x):
        return torch.fft.irfft(torch.fft.rfft(x) * mask, n=64)

    return low_pass, (torch.randn(4, 64, device=device),)


def complex_rotation(device):
    def rotate(x, angle):
        return torch.view_as_real(
            torch.view_as_complex(x) * torch.polar(torch.ones_like(angle), angle)
        )

    return rotate, (torch.randn(4, 8, 2, device=device), torch.randn(4, 8, device=device))


def complex_phase_counter(device):
    step = [0]

    def rotate(x):
        step[0] += 1  # guilty: counted on the host
        phase = complex(0, 0.1) * step[0]
        return torch.view_as_complex(x) * (1 + phase)  # guilty: a Python complex number

    return rotate, (torch.randn(4, 8, 2, device=device),)


def stft_and_back(device):
    window = torch.hann_window(32, device=device)

    def vocode(x):
        spectrum = torch.stft(x, 32, 8, window=window, return_complex=True)
        return spectrum.abs().clamp_min(1e-5).log()

    return vocode, (torch.randn(2, 256, device=device),)


def inverse_stft_checks_its_window(device):
    window = torch.hann_window(32, device=device)

    def reconstruct(x):
        spectrum = torch.stft(x, 32, 8, window=window, return_complex=True)
        return torch.istft(spectrum, 32, 8, window=window)  # guilty: checks the window on the host

    return reconstruct, (torch.randn(2, 256, device=device),)


def to_sparse_of_an_activation(device):
    def compress(x):
        return x.relu().to_sparse().values().sum()  # guilty: counts the non-zeros

    return compress, (torch.randn(6, 4, device=device),)


def csr_matrix_product(device):
    dense = torch.rand(6, 6, device=device) * (torch.rand(6, 6, device=device) > 0.5)
    matrix = dense.to_sparse_csr()

    def propagate(x):
        return matrix @ x

    return propagate, (torch.randn(6, 4, device=device),)


def nested_from_a_list(device):
    layer = nn.Linear(4, 4, device=device)

    @torch.no_grad()
    def forward(a, b):
        ragged = torch.nested.nested_tensor(
            [a, b], layout=torch.jagged
        )  # guilty: offsets are copied
        return layer(ragged).values()

    return forward, (torch.randn(3, 4, device=device), torch.randn(5, 4, device=device))


def padded_instead_of_nested(device):
    layer = nn.Linear(4, 4, device=device)

    @torch.no_grad()
    def forward(a, b):
        padded = torch.zeros(2, 5, 4, device=a.device)
        padded[0, :3], padded[1] = a, b
        return layer(padded)

    return forward, (torch.randn(3, 4, device=device), torch.randn(5, 4, device=device))


def pads_a_sequence(device):
    def batch(a, b):
        return nn.utils.rnn.pad_sequence([a, b], batch_first=True)

    return batch, (torch.randn(3, 4, device=device), torch.randn(5, 4, device=device))


def fake_quantised_weights(device):
    weight = torch.randn(8, 8, device=device, requires_grad=True)
    scale = torch.full((8,), 0.05, device=device)
    zero = torch.zeros(8, dtype=torch.int32, device=device)

    def forward(x):
        quantised = (
            torch.fake_quantize_per_channel_affine(  # guilty: checks zero points on the host
                weight, scale, zero, 0, -128, 127
            )
        )
        return functional.linear(x, quantised)

    return forward, (torch.randn(4, 8, device=device),)


def int8_by_hand(device):
    def forward(x, w):
        scale = w.abs().amax(1, keepdim=True) / 127
        q = (w / scale).round().clamp(-127, 127).to(torch.int8)
        return x @ (q.float() * scale).T

    return forward, (torch.randn(4, 8, device=device), torch.randn(8, 8, device=device))


def int8_scale_on_host(device):
    def forward(x, w):
        scale = float(w.abs().max()) / 127  # guilty: the scale is read on the host
        q = torch.quantize_per_tensor(w, scale, 0, torch.qint8)
        return x @ q.dequantize().T

    return forward, (torch.randn(4, 8, device=device), torch.randn(8, 8, device=device))


def float8_round_trip(device):
    def forward(x):
        scale = x.abs().amax() / 448
        return (x / scale).to(torch.float8_e4m3fn).float() * scale

    return forward, (torch.randn(4, 8, device=device),)


def integer_hash_embedding(device):
    table = nn.Embedding(64, 4, device=device)

    def embed(ids):
        mixed = (ids * 2654435761) ^ (ids >> 7)
        return table(mixed.remainder(64))

    return embed, (torch.randint(2**31, (16,), device=device),)


def bit_packing(device):
    shifts = torch.arange(8, device=device)

    def pack(bits):
        return (bits.long() << shifts).sum(-1).to(torch.uint8)

    return pack, (torch.rand(4, 8, device=device) > 0.5,)


def cholesky_checked(device):
    def whiten(x):
        covariance = x.T @ x + torch.eye(4, device=x.device)
        return torch.linalg.cholesky(covariance)  # guilty: checks for errors on the host

    return whiten, (torch.randn(8, 4, device=device),)


def cholesky_unchecked(device):
    def whiten(x):
        covariance = x.T @ x + torch.eye(4, device=x.device)
        return torch.linalg.cholesky_ex(covariance).L

    return whiten, (torch.randn(8, 4, device=device),)


def triangular_solve(device):
    def solve(a, b):
        lower = a.tril() + 4 * torch.eye(4, device=a.device)
        return torch.linalg.solve_triangular(lower, b, upper=False)

    return solve, (torch.randn(4, 4, device=device), torch.randn(4, 2, device=device))


def inverse_of_a_covariance(device):
    def mahalanobis(x, d):
        covariance = x.T @ x / 8 + torch.eye(4, device=x.device)
        return d @ torch.linalg.inv(covariance) @ d.T  # guilty: checks for errors on the host

    return mahalanobis, (torch.randn(8, 4, device=device), torch.randn(2, 4, device=device))


def inverse_without_checks(device):
    def mahalanobis(x, d):
        covariance = x.T @ x / 8 + torch.eye(4, device=x.device)
        return d @ torch.linalg.inv_ex(covariance).inverse @ d.T

    return mahalanobis, (torch.randn(8, 4, device=device), torch.randn(2, 4, device=device))


def newton_schulz_orthogonalise(device):
    def orthogonalise(g):
        x = g / (g.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x

    return orthogonalise, (torch.randn(4, 8, device=device),)


def power_iteration(device):
    def top_value(a):
        v = torch.ones(6, device=a.device)
        for _ in range(8):
            v = functional.normalize(a @ v, dim=0)
        return v @ a @ v

    return top_value, (torch.rand(6, 6, device=device),)


def eigenvalues_of_a_hessian(device):
    def sharpness(a):
        return torch.linalg.eigvalsh(a @ a.T).amax()  # guilty: the solver waits for the device

    return sharpness, (torch.randn(6, 6, device=device),)


def pairwise_and_kernel_matrix(device):
    def kernel(x, y):
        return torch.exp(-torch.cdist(x, y).square() / 2).mean()

    return kernel, (torch.randn(6, 4, device=device), torch.randn(5, 4, device=device))


def sinkhorn(device):
    def plan(cost):
        log_p = -cost / 0.1
        for _ in range(10):
            log_p = log_p - log_p.logsumexp(1, keepdim=True)
            log_p = log_p - log_p.logsumexp(0, keepdim=True)
        return log_p.exp()

    return plan, (torch.rand(6, 6, device=device),)


def sinkhorn_until_converged(device):
    def plan(cost):
        log_p = -cost / 0.1
        for _ in range(100):
            last = log_p
            log_p = log_p - log_p.logsumexp(1, keepdim=True)
            log_p = log_p - log_p.logsumexp(0, keepdim=True)
            if torch.allclose(last, log_p, atol=1e-4):  # guilty: compares on the host
                break
        return log_p.exp()

    return plan, (torch.rand(6, 6, device=device),)


def equality_of_two_tensors(device):
    def changed(x, y):
        same = torch.equal(x, y)  # guilty: the answer is a Python bool
        return x if same else x + y

    return changed, (torch.randn(4, device=device), torch.randn(4, device=device))


def median_filter(device):
    def smooth(x):
        return x.unfold(1, 5, 1).median(-1).values

    return smooth, (torch.randn(2, 32, device=device),)


def quantile_normalise(device):
    def normalise(x):
        low, high = torch.quantile(x, torch.tensor([0.05, 0.95], device=device))  # guilty: a copy
        return (x - low) / (high - low)

    return normalise, (torch.randn(64, device=device),)


def quantile_levels_on_device(device):
    levels = torch.tensor([0.05, 0.95], device=device)

    def normalise(x):
        low, high = torch.quantile(x, levels)
        return (x - low) / (high - low)

    return normalise, (torch.randn(64, device=device),)


def grid_sample_warp(device):
    def warp(image, flow):
        identity = torch.eye(2, 3, device=image.device)[None].expand(2, 2, 3)
        grid = functional.affine_grid(identity, list(image.shape), align_corners=False)
        return functional.grid_sample(image, grid + flow, align_corners=False)

    return warp, (
        torch.rand(2, 3, 8, 8, device=device),
        torch.rand(2, 8, 8, 2, device=device) * 0.1,
    )


def resize_by_scale(device):
    def resize(x):
        small = functional.interpolate(x, scale_factor=0.5, mode="bilinear")
        return functional.interpolate(small, size=x.shape[-2:], mode="nearest")

    return resize, (torch.rand(2, 3, 8, 8, device=device),)


def resize_by_a_drawn_size(device):
    def resize(x):
        size = torch.randint(4, 9, (1,), device=device)
        return functional.interpolate(x, size=(int(size), int(size)))  # guilty: reads the size

    return resize, (torch.rand(2, 3, 8, 8, device=device),)


def nms_by_matrix(device):
    def keep(boxes, scores):
        order = scores.argsort(descending=True)
        b = boxes[order]
        low = torch.maximum(b[:, None, :2], b[None, :, :2])
        high = torch.minimum(b[:, None, 2:], b[None, :, 2:])
        overlap = (high - low).clamp_min(0).prod(-1)
        area = (b[:, 2:] - b[:, :2]).prod(-1)
        iou = overlap / (area[:, None] + area - overlap)
        decay = (1 - iou.triu(1).amax(0)).clamp_min(0)
        return scores[order] * decay

    corners = torch.rand(8, 2, device=device)
    boxes = torch.cat([corners, corners + 0.3], 1)
    return keep, (boxes, torch.rand(8, device=device))


def nms_one_by_one(device):
    def keep(boxes, scores):
        kept = []
        order = scores.argsort(descending=True)
        while order.numel() > 0 and len(kept) < 4:
            best, rest = order[0], order[1:]
            kept.append(best)
            gap = (boxes[rest] - boxes[best]).abs().sum(-1)  # guilty: reads the number of the best
            order = rest[gap > 0.2]  # guilty: the number of the remaining boxes is read
        return torch.stack(kept)

    return keep, (torch.rand(8, 4, device=device), torch.rand(8, device=device))
