"""Shapes, masks and indices that depend on data, and those that do not."""

import torch
from torch import nn
from torch.nn import functional


def drops_low_scores(device):
    def keep(boxes, scores):
        return boxes[scores > 0.5]  # guilty: the number of rows is read on the host

    return keep, (torch.rand(16, 4, device=device), torch.rand(16, device=device))


def zeroes_low_scores(device):
    def keep(boxes, scores):
        return torch.where((scores > 0.5)[:, None], boxes, 0.0)

    return keep, (torch.rand(16, 4, device=device), torch.rand(16, device=device))


def fills_by_mask(device):
    def fill(x, mask):
        y = x.clone()
        y[mask] = -1.0
        return y

    return fill, (torch.randn(4, 8, device=device), torch.rand(4, 8, device=device) > 0.5)


def fills_by_mask_with_a_tensor(device):
    def fill(x, mask, values):
        y = x.clone()
        y[mask] = values[mask]  # guilty: both masks become lists of indices
        return y

    shape = (4, 8)
    mask = torch.rand(shape, device=device) > 0.5
    return fill, (torch.randn(shape, device=device), mask, torch.randn(shape, device=device))


def positions_of_events(device):
    def events(signal):
        return signal.diff().sign().diff().nonzero()  # guilty: as many rows as there are events

    return events, (torch.randn(64, device=device),)


def positions_of_events_padded(device):
    def events(signal):
        return torch.nonzero_static(signal.diff() > 0, size=64, fill_value=-1)

    return events, (torch.randn(64, device=device),)


def distinct_users(device):
    embedding = nn.Embedding(32, 4, device=device)

    def embed(users):
        distinct, back = users.unique(return_inverse=True)  # guilty: finds out how many there are
        return embedding(distinct)[back]

    return embed, (torch.randint(32, (16,), device=device),)


def one_hot_labels(device):
    def smooth(labels):
        hot = functional.one_hot(labels)  # guilty: the number of classes is read on the host
        return hot * 0.9 + 0.01

    return smooth, (torch.randint(10, (8,), device=device),)


def one_hot_by_comparison(device):
    classes = torch.arange(10, device=device)

    def smooth(labels):
        return (labels[:, None] == classes) * 0.9 + 0.01

    return smooth, (torch.randint(10, (8,), device=device),)


def expands_by_durations(device):
    def upsample(phonemes, durations):
        return phonemes.repeat_interleave(durations, 0)  # guilty: the length is the sum

    return upsample, (torch.randn(6, 8, device=device), torch.randint(1, 4, (6,), device=device))


def expands_to_a_known_length(device):
    frames = torch.arange(24, device=device)

    def upsample(phonemes, durations):
        ends = durations.cumsum(0)
        index = torch.bucketize(frames, ends, right=True).clamp(max=5)
        return phonemes[index] * (frames < ends[-1])[:, None]

    return upsample, (torch.randn(6, 8, device=device), torch.randint(1, 4, (6,), device=device))


def repeats_each_row_twice(device):
    def upsample(x):
        return x.repeat_interleave(2, dim=0)

    return upsample, (torch.randn(6, 8, device=device),)


def counts_words(device):
    def count(ids):
        return torch.bincount(ids, minlength=50)  # guilty: reads the largest id on the host

    return count, (torch.randint(50, (64,), device=device),)


def counts_words_by_scatter(device):
    def count(ids):
        zeros = torch.zeros(50, device=ids.device, dtype=torch.long)
        return zeros.scatter_add(0, ids, torch.ones_like(ids))

    return count, (torch.randint(50, (64,), device=device),)


def splits_by_lengths(device):
    def means(x, lengths):
        parts = x.split(lengths.tolist())  # guilty: sizes are read on the host
        return torch.stack([part.mean(0) for part in parts])

    lengths = torch.tensor([2, 5, 1], device=device)
    return means, (torch.randn(8, 4, device=device), lengths)


def splits_by_constants(device):
    def means(x):
        return torch.stack([part.mean(0) for part in x.split([2, 5, 1])])

    return means, (torch.randn(8, 4, device=device),)


def segment_means(device):
    def means(x, segment):
        sums = torch.zeros(3, 4, device=x.device).index_add(0, segment, x)
        counts = torch.zeros(3, device=x.device).index_add(0, segment, x.new_ones(8))
        return sums / counts.clamp_min(1)[:, None]

    return means, (torch.randn(8, 4, device=device), torch.randint(3, (8,), device=device))


def reads_one_element_by_tensor(device):
    def look_up(table, index):
        return table[index]  # guilty: an index without dimensions is read on the host

    return look_up, (torch.randn(16, 4, device=device), torch.tensor(3, device=device))


def selects_one_row_by_tensor(device):
    def look_up(table, index):
        return table.index_select(0, index[None])[0]

    return look_up, (torch.randn(16, 4, device=device), torch.tensor(3, device=device))


def slices_up_to_a_tensor(device):
    def prefix(x, end):
        return x[:, :end].sum(1)  # guilty: the end of a slice becomes a Python number

    return prefix, (torch.randn(4, 16, device=device), torch.tensor(5, device=device))


def narrow_at_a_tensor(device):
    def window(x, start):
        return torch.narrow(x, 1, start, 4) * 2  # guilty: the start is read on the host

    return window, (torch.randn(4, 16, device=device), torch.tensor(5, device=device))


def gathers_a_window(device):
    offsets = torch.arange(4, device=device)

    def window(x, start):
        return x.index_select(1, start + offsets) * 2

    return window, (torch.randn(4, 16, device=device), torch.tensor(5, device=device))


def indexes_with_a_python_list(device):
    def pick(x):
        return x[:, [0, 3, 5]]  # guilty: the list is copied to the device at each call

    return pick, (torch.randn(4, 8, device=device),)


def indexes_with_a_device_list(device):
    columns = torch.tensor([0, 3, 5], device=device)

    def pick(x):
        return x[:, columns]

    return pick, (torch.randn(4, 8, device=device),)


def builds_a_linspace_from_tensors(device):
    def ramp(x):
        return torch.linspace(x.amin(), x.amax(), 8, device=device)  # guilty: reads both ends

    return ramp, (torch.randn(32, device=device),)


def interpolates_between_tensors(device):
    weights = torch.linspace(0, 1, 8, device=device)

    def ramp(x):
        return torch.lerp(x.amin(), x.amax(), weights)

    return ramp, (torch.randn(32, device=device),)


def masked_select_then_sum(device):
    def total(x):
        return torch.masked_select(x, x > 0).sum()  # guilty: the result's size depends on data

    return total, (torch.randn(64, device=device),)


def sum_of_positives(device):
    def total(x):
        return x.clamp_min(0).sum()

    return total, (torch.randn(64, device=device, requires_grad=True),)


def argwhere_of_the_first(device):
    def first(x):
        return torch.argwhere(x > 0)[0]  # guilty: lists all of them first

    return first, (torch.randn(64, device=device),)


def first_by_argmax(device):
    def first(x):
        return (x > 0).to(torch.uint8).argmax()

    return first, (torch.randn(64, device=device),)


def adaptive_pool_any_shape(device):
    def pool(x):
        height, width = x.shape[-2:]
        size = max(1, height // 4), max(1, width // 4)
        return functional.adaptive_avg_pool2d(x, size)

    return pool, (torch.randn(2, 3, 16, 12, device=device),)


def flattens_by_numel(device):
    def flat(x):
        if x.numel() > 100 and x.dim() > 2:
            x = x.flatten(1)
        return x.view(x.size(0), -1).sum(len(x.shape) - 1)

    return flat, (torch.randn(2, 8, 16, device=device),)


def cosine_topk_gather(device):
    def nearest(queries, keys):
        scores = functional.normalize(queries, dim=-1) @ functional.normalize(keys, dim=-1).T
        values, index = scores.topk(3)
        return (values.softmax(-1)[..., None] * keys[index]).sum(1)

    return nearest, (torch.randn(4, 8, device=device), torch.randn(32, 8, device=device))


def cumulative_maximum_resets(device):
    def drawdown(prices):
        return (prices.cummax(0).values - prices).amax(0)

    return drawdown, (torch.rand(64, 4, device=device),)


def unfolds_windows(device):
    def windows(x):
        return x.unfold(1, 8, 4).std(-1)

    return windows, (torch.randn(2, 64, device=device),)


def cartesian_pairs(device):
    def distances(x):
        i, j = torch.triu_indices(8, 8, 1, device=x.device)
        return (x[i] - x[j]).norm(dim=-1)

    return distances, (torch.randn(8, 3, device=device),)


def cartesian_pairs_from_host_indices(device):
    def distances(x):
        i, j = torch.triu_indices(8, 8, 1)
        return (x[i] - x[j]).norm(dim=-1)  # guilty: indices on the host are copied at each call

    return distances, (torch.randn(8, 3, device=device),)
