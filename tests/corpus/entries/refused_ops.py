"""One entry for each rule of what CUDA refuses of an op, and look-alikes that are captured."""

import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional


def compares_with_equal(device):
    def forward(x):
        return x * torch.equal(x, x + 0)  # guilty: torch.equal

    return forward, (torch.randn(4, 6, device=device),)


def equal_of_two_shapes(device):
    def forward(x):
        return x * torch.equal(x, x[:2])

    return forward, (torch.randn(4, 6, device=device),)


def compares_with_allclose(device):
    def forward(x):
        return x * torch.allclose(x, x + 0)  # guilty: torch.allclose

    return forward, (torch.randn(4, 6, device=device),)


def truth_of_is_nonzero(device):
    def forward(x):
        return x * torch.is_nonzero(x.sum())  # guilty: is_nonzero

    return forward, (torch.randn(4, 6, device=device),)


def counts_values(device):
    def forward(x):
        return torch.bincount(x)  # guilty: bincount

    return forward, (torch.randint(5, (9,), device=device),)


def histogram_without_a_range(device):
    def forward(x):
        return torch.histc(x, 4)  # guilty: reads the smallest and largest value

    return forward, (torch.randn(4, 6, device=device),)


def histogram_of_a_range(device):
    def forward(x):
        return torch.histc(x, 4, -1, 1)

    return forward, (torch.randn(4, 6, device=device),)


def search_through_a_sorter(device):
    def forward(x):
        order = x.argsort()
        return torch.searchsorted(x, x, sorter=order)  # guilty: reads the range of the sorter

    return forward, (torch.randn(4, 6, device=device),)


def search_in_sorted_numbers(device):
    def forward(x):
        return torch.searchsorted(x.sort().values, x)

    return forward, (torch.randn(4, 6, device=device),)


def ctc_loss_with_lengths_of_the_host(device):
    targets = torch.randint(1, 6, (2, 3), device=device)
    lengths = torch.tensor([9, 9]), torch.tensor([3, 3])

    def forward(x):
        return functional.ctc_loss(x.log_softmax(-1), targets, *lengths)  # guilty: copies them

    return forward, (torch.randn(9, 2, 6, device=device),)


def inverse(device):
    def forward(x):
        return torch.linalg.inv(x)  # guilty: checks the error code

    return forward, (torch.randn(4, 4, device=device),)


def factors_a_rectangle(device):
    def forward(x):
        return torch.linalg.lu_factor_ex(x)[0]  # guilty: MAGMA waits

    return forward, (torch.randn(4, 6, device=device),)


def factors_a_square(device):
    def forward(x):
        return torch.linalg.lu_factor_ex(x)[0]

    return forward, (torch.randn(4, 4, device=device),)


def factors_a_symmetric_matrix(device):
    def forward(x):
        return torch.linalg.ldl_factor_ex(x + x.mT)[0]  # guilty: sytrf

    return forward, (torch.randn(4, 4, device=device),)


def rotates_by_an_exponential(device):
    def forward(x):
        return torch.linalg.matrix_exp(x - x.mT)  # guilty: the norm chooses a degree on the host

    return forward, (torch.randn(2, 3, 3, device=device),)


def decays_by_exponentials_of_one_element(device):
    def forward(x):
        return torch.linalg.matrix_exp(x)

    return forward, (torch.randn(5, 1, 1, device=device),)


def eigenvectors(device):
    def forward(x):
        return torch.linalg.eig(x)[1].abs()  # guilty: runs on the host

    return forward, (torch.randn(4, 4, device=device),)


def eigenvalues(device):
    def forward(x):
        return torch.linalg.eigvals(x).abs()  # guilty: runs on the host

    return forward, (torch.randn(4, 4, device=device),)


def repeats_by_a_tensor(device):
    counts = torch.tensor([1, 2, 0, 1], device=device)

    def forward(x):
        return x.repeat_interleave(counts, 0)  # guilty: reads the sum of the repeats

    return forward, (torch.randn(4, 6, device=device),)


def repeats_to_a_known_size(device):
    counts = torch.tensor([1, 2, 0, 1], device=device)

    def forward(x):
        return x.repeat_interleave(counts, 0, output_size=4)

    return forward, (torch.randn(4, 6, device=device),)


def selects_by_a_mask(device):
    def forward(x):
        return x[x > 0].sum()  # guilty: as many as are positive

    return forward, (torch.randn(4, 6, device=device),)


def assigns_by_a_mask(device):
    def forward(x, mask):
        x = x.clone()
        x[mask] = x[0, :1].clone()  # guilty: the mask becomes indices
        return x

    return forward, (torch.randn(4, 6, device=device), torch.rand(4, 6, device=device) > 0.5)


def fills_the_diagonal_by_two_masks(device):
    def forward(x):
        x, dead = x.clone(), x.diag() > 0
        x[dead, dead] = 1  # guilty: two masks become indices
        return x

    return forward, (torch.randn(5, 5, device=device),)


def fills_columns_of_masked_rows(device):
    columns = torch.tensor([0], device=device)

    def forward(x, mask):
        x = x.clone()
        x[mask, columns] = 0.0  # guilty: the mask beside other indices becomes indices
        return x

    return forward, (torch.randn(4, 6, device=device), torch.rand(4, device=device) > 0.5)


def fills_a_column_of_masked_rows(device):
    def forward(x, mask):
        x = x.clone()
        x[mask, 0] = 0.0
        x[1:, None, mask.roll(1)] = 1.0
        return x

    return forward, (torch.randn(4, 4, device=device), torch.rand(4, device=device) > 0.5)


def positions_that_are_not_zero(device):
    def forward(x):
        return (x > 0).nonzero()  # guilty: as many as are positive

    return forward, (torch.randn(4, 6, device=device),)


def masked_select_of_the_positive(device):
    def forward(x):
        return x.masked_select(x > 0)  # guilty: as many as are positive

    return forward, (torch.randn(4, 6, device=device),)


def distinct_values(device):
    def forward(x):
        return torch.unique(x)  # guilty: as many as there are

    return forward, (torch.randint(5, (9,), device=device),)


def distinct_rows(device):
    def forward(x):
        return torch.unique(x, dim=0)  # guilty: as many as there are

    return forward, (torch.randn(4, 6, device=device),)


def runs_of_values(device):
    def forward(x):
        return torch.unique_consecutive(x)  # guilty: as many as there are

    return forward, (torch.randint(5, (9,), device=device),)


def runs_of_rows(device):
    def forward(x):
        return torch.unique_consecutive(x, dim=0)  # guilty: as many as there are

    return forward, (torch.randn(4, 6, device=device),)


def coalesces_a_sparse_tensor(device):
    indices = torch.tensor([[0, 1, 1]], device=device)

    def forward(x):
        return torch.sparse_coo_tensor(indices, x, (4,)).coalesce().values()  # guilty: it counts

    return forward, (torch.randn(3, device=device),)


def multiplies_an_uncoalesced_matrix(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)

    def forward(x, values):
        adjacency = torch.sparse_coo_tensor(indices, values, (4, 4), check_invariants=False)
        return torch.sparse.mm(adjacency, x)  # guilty: it sorts the indices and counts them

    return forward, (torch.randn(4, 6, device=device), torch.randn(4, device=device))


def multiplies_a_coalesced_matrix(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)
    adjacency = torch.sparse_coo_tensor(indices, torch.ones(4, device=device), (4, 4)).coalesce()

    def forward(x):
        return torch.sparse.mm(adjacency, x)

    return forward, (torch.randn(4, 6, device=device),)


def softmax_of_a_sparse_matrix(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)
    scores = torch.sparse_coo_tensor(indices, torch.ones(4, device=device), (4, 4)).coalesce()

    def forward(x):
        return x + torch.sparse.softmax(scores, 1).to_dense()  # guilty: counts the rows

    return forward, (torch.randn(4, 4, device=device),)


def sparse_matrix_of_unknown_size(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)

    def forward(values):
        return torch.sparse_coo_tensor(indices, values).to_dense()  # guilty: reads the indices

    return forward, (torch.randn(4, device=device),)


def sparse_matrix_with_checks(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)

    def forward(values):
        matrix = torch.sparse_coo_tensor(  # guilty: checks the indices
            indices, values, (4, 4), check_invariants=True
        )
        return matrix.to_dense()

    return forward, (torch.randn(4, device=device),)


def branches_with_cond(device):
    def forward(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # guilty: reads the condition

    return forward, (torch.randn(4, 6, device=device),)


def branches_with_gradients(device):
    def forward(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # guilty: reads the condition

    return forward, (torch.randn(4, 6, device=device, requires_grad=True),)


def loops_while_a_tensor_says_so(device):
    def forward(x):
        def goes_on(count, _):
            return count < 5

        def improve(count, root):
            return count + 1, (root + x / root) / 2

        start = torch.zeros((), dtype=torch.int64, device=x.device), torch.ones_like(x)
        return while_loop(goes_on, improve, start)[1]  # guilty: reads the condition

    return forward, (torch.rand(4, device=device) + 1,)


def fills_a_mask_with_the_maximum(device):
    def forward(x):
        return x.masked_fill(x < 0, x.max())  # guilty: reads the value

    return forward, (torch.randn(4, 6, device=device),)


def fills_a_mask_with_a_tensor_of_the_host(device):
    value = torch.tensor(0.5)

    def forward(x):
        return x.masked_fill(x < 0, value)

    return forward, (torch.randn(4, 6, device=device),)


def fills_rows_with_the_maximum(device):
    rows = torch.tensor([0, 3], device=device)

    def forward(x):
        return x.index_fill(0, rows, x.max())  # guilty: reads the value

    return forward, (torch.randn(4, 6, device=device),)


def fills_all_with_the_maximum(device):
    def forward(x):
        return x.clone().fill_(x.max())

    return forward, (torch.randn(4, 6, device=device),)


def draws_by_a_probability_of_the_host(device):
    probability = torch.tensor(0.5)

    def forward(x):
        return torch.empty_like(x).bernoulli_(probability)  # guilty: copied to the device

    return forward, (torch.randn(4, 6, device=device),)


def chooses_a_tensor_of_the_host(device):
    zero = torch.tensor(0.0)

    def forward(x):
        return torch.where(x > 0, x, zero)  # guilty: copied to the device

    return forward, (torch.randn(4, 6, device=device),)


def chooses_of_two_tensors_of_the_host(device):
    low, high = torch.tensor(0.1), torch.tensor(0.9)

    def forward(x):
        return x * torch.where(x > 0, high, low)  # guilty: both are copied to the device

    return forward, (torch.randn(4, 6, device=device),)


def chooses_a_number(device):
    def forward(x):
        return torch.where(x > 0, x, 0.0)

    return forward, (torch.randn(4, 6, device=device),)


def puts_a_tensor_of_the_host(device):
    rows = torch.tensor([0, 3], device=device)
    padding = torch.tensor(-1.0)

    def forward(x):
        return x.index_put((rows,), padding)  # guilty: copied to the device

    return forward, (torch.randn(4, 6, device=device),)


def adds_a_tensor_of_the_host_to_rows(device):
    rows = torch.tensor([0, 3], device=device)
    one = torch.tensor(1.0)

    def forward(x):
        return x.index_put((rows,), one, accumulate=True)  # guilty: copied to the device

    return forward, (torch.randn(4, 6, device=device),)


def puts_a_tensor_of_the_host_by_a_mask(device):
    padding = torch.tensor(-1.0)

    def forward(x):
        return x.index_put((x > 0,), padding)

    return forward, (torch.randn(4, 6, device=device),)


def puts_by_an_index_of_the_host(device):
    row = torch.tensor(1)

    def forward(x):
        return x.index_put((row,), x[0])  # guilty: copied to the device

    return forward, (torch.randn(4, 6, device=device),)


def assigns_a_number_by_an_index(device):
    def forward(x, rows):
        x = x.clone()
        x[rows] = 1.0  # guilty: the number is a tensor of the host, and copied to the device
        return x

    return forward, (torch.randn(6, 4, device=device), torch.tensor([0, 3], device=device))


def puts_values_of_the_device(device):
    def forward(x, rows):
        y = x.index_put((rows,), x.new_zeros(()))
        y[rows] = x.mean()
        return y.index_fill(0, rows, 2.0).scatter(0, rows[:, None].expand(2, 4), 3.0)

    return forward, (torch.randn(6, 4, device=device), torch.tensor([0, 3], device=device))


def tensors_of_the_host_as_numbers(device):
    half = torch.tensor(0.5)

    def forward(x):
        y = torch.addcmul(x, x, half).lerp(x, half) // half
        return *torch._foreach_mul([y, x], half), *torch._foreach_add([x], [half])

    return forward, (torch.randn(4, 6, device=device),)


def embedding_with_a_maximum_norm(device):
    embedding = nn.Embedding(12, 4, max_norm=1.0).to(device).requires_grad_(False)

    def forward(ids):
        return embedding(ids).sum(1)

    return forward, (torch.randint(12, (3, 5), device=device),)


def fake_quantised_weight(device):
    weight = nn.Parameter(torch.randn(4, 4, device=device))
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    def forward(x):
        scale = (weight.detach().abs().amax() / 127).reshape(1)
        return x @ torch.fake_quantize_per_tensor_affine(weight, scale, zero, -128, 127)

    return forward, (torch.randn(3, 4, device=device),)


def fake_quantised_channels(device):
    weight = torch.randn(4, 4, device=device)
    scale = torch.full((4,), 0.01, device=device)
    zero = torch.zeros(4, dtype=torch.int32, device=device)

    def forward(x):
        quantised = torch.fake_quantize_per_channel_affine(  # guilty: checks the zero points
            weight, scale, zero, 0, -128, 127
        )
        return x @ quantised

    return forward, (torch.randn(3, 4, device=device),)


def observed_and_fake_quantised(device):
    def flag():
        return torch.ones(1, dtype=torch.long, device=device)

    observe, quantise = flag(), flag()
    low, high = torch.full((1,), -1.0, device=device), torch.full((1,), 1.0, device=device)
    scale = torch.ones(1, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    def forward(x):
        return torch.fused_moving_avg_obs_fake_quant(
            x, observe, quantise, low, high, scale, zero, 0.01, -128, 127, -1
        )

    return forward, (torch.randn(4, 4, device=device),)


def quantised_by_a_scale_on_the_device(device):
    scale = torch.ones(1, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    def forward(x):
        quantised = torch.quantize_per_tensor(x, scale, zero, torch.quint8)  # guilty: reads both
        return quantised.dequantize()

    return forward, (torch.randn(4, 4, device=device),)


def list_under_a_device_context(device):
    def weigh(x):
        with torch.device(device):
            weights = torch.tensor([1.0, 2.0, 3.0])  # guilty: copied from the host
        return x * weights

    return weigh, (torch.randn(2, 3, device=device),)


def ranges_under_a_device_context(device):
    def weigh(x):
        with torch.device(device):
            weights = (
                torch.arange(3) + torch.full((3,), 2.0) + torch.tensor([], device=device).sum()
            )
        return x * weights

    return weigh, (torch.randn(2, 3, device=device),)


def gradients_are_tested_for_nan(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(device)
    x = torch.randn(4, 8, device=device)

    def step():
        with torch.autograd.set_detect_anomaly(True):
            loss = model(x).mean()
            loss.backward()  # guilty: anomaly mode reads every gradient
        return loss.detach()

    return step


def gradients_are_not_tested_for_nan(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(device)
    x = torch.randn(4, 8, device=device)

    def step():
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            loss = model(x).mean()
            loss.backward()
        return loss.detach()

    return step


class Limited(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 3).any()):  # guilty: the truth of a tensor
            x = x / 2
        return x


def scripted_branch(device):
    limited = torch.jit.script(Limited())
    return (lambda x: limited(x)), (torch.randn(4, device=device),)  # guilty: it reads a tensor
