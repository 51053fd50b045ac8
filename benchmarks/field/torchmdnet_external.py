# /// script
# dependencies = [
#     "torchmd-net==2.4.10", "lightning-utilities==0.15.3", "packaging", "tqdm", "numpy",
# ]
# [tool.field]
# package = "torchmd-net"
# version = "2.4.10"
# ///
"""`External` with a graph: energy and forces of molecules that move, as a simulation asks for them.

Replaced: the compiled search for neighbors, by one in PyTorch."""

import sys
import types

import torch


def neighbor_pairs(positions, batch, cutoff_lower, cutoff_upper, **_options):
    first, second = torch.triu_indices(len(positions), len(positions), 1, device="cuda")
    pairs = torch.stack([torch.cat([first, second]), torch.cat([second, first])])
    vectors = positions[pairs[0]] - positions[pairs[1]]
    distances = vectors.norm(dim=1)
    near = (distances >= cutoff_lower) & (distances < cutoff_upper)
    near &= batch[pairs[0]] == batch[pairs[1]]
    return torch.where(near, pairs, -1), vectors, distances, near.sum()


extensions = types.ModuleType("torchmdnet.extensions")
extensions.get_neighbor_pairs_kernel = neighbor_pairs
extensions.is_current_stream_capturing = torch.cuda.is_current_stream_capturing
sys.modules[extensions.__name__] = extensions

from torchmdnet.calculators import External
from torchmdnet.models.model import create_model

torch.manual_seed(0)
model = create_model(
    {
        "model": "tensornet",
        "output_model": "Scalar",
        "embedding_dimension": 8,
        "num_layers": 1,
        "num_rbf": 4,
        "rbf_type": "expnorm",
        "trainable_rbf": False,
        "activation": "silu",
        "cutoff_lower": 0.0,
        "cutoff_upper": 4.5,
        "max_z": 20,
        "max_num_neighbors": 8,
        "equivariance_invariance_group": "O(3)",
        "precision": 32,
        "derivative": True,
        "reduce_op": "sum",
        "prior_model": None,
        "atom_filter": -1,
        "static_shapes": True,
        "check_errors": False,
    }
).cuda()
atoms = torch.tensor([[8, 1, 1, 6], [6, 1, 8, 1]], device="cuda")
eager, graphed = (External(model, atoms, "cuda", use_cuda_graph=each) for each in (False, True))
places = torch.randn(8, 3, device="cuda")
for _ in range(6):
    places = (places + 0.05 * torch.randn_like(places)).requires_grad_()
    for expected, result in zip(eager.calculate(places), graphed.calculate(places), strict=True):
        torch.testing.assert_close(result, expected)
    places = places.detach()
print(result.shape)
