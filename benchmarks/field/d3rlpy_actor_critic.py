# /// script
# dependencies = [
#     "d3rlpy==2.8.1", "gym==0.26.2", "gym-notices", "gymnasium==1.0.0", "farama-notifications",
#     "cloudpickle", "h5py", "click", "structlog", "colorama", "dataclasses-json==0.6.7",
#     "marshmallow==3.26.1", "typing-inspect", "mypy-extensions", "packaging", "tqdm",
#     "scikit-learn==1.7.2", "scipy", "joblib", "threadpoolctl", "narwhals", "numpy",
# ]
# [tool.field]
# package = "d3rlpy"
# version = "2.8.1"
# # The call that captures leaves empty gradients, with which the optimizer then steps.
# true = [
#     { code = "capture-does-not-execute", file = "optimizers/optimizers.py", function = "step" },
# ]
# ///
"""TD3 with `compile_graph=True`: the actor's backward adds to the critic's gradients."""

import d3rlpy
import numpy

rng = numpy.random.default_rng(0)
d3rlpy.seed(0)
SIZES = {"observations": 4, "actions": 2, "rewards": 1}
dataset = d3rlpy.dataset.MDPDataset(
    **{name: rng.standard_normal((64, size), numpy.float32) for name, size in SIZES.items()},
    terminals=numpy.arange(64) % 16 == 15,
)
encoder = d3rlpy.models.VectorEncoderFactory([16])
algorithm = d3rlpy.algos.TD3Config(
    batch_size=8,
    actor_encoder_factory=encoder,
    critic_encoder_factory=encoder,
    compile_graph=True,
).create(device="cuda:0")
epochs = algorithm.fit(
    dataset,
    n_steps=12,
    n_steps_per_epoch=6,
    show_progress=False,
    logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
)
for _, losses in epochs:
    print({name: round(value, 3) for name, value in losses.items() if "loss" in name})
