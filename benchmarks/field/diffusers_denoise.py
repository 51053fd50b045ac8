# /// script
# dependencies = [
#     "diffusers==0.42.1", "safetensors==0.8.0", "huggingface-hub==1.32.0", "importlib-metadata",
#     "zipp", "filelock", "fsspec", "regex", "requests", "urllib3", "charset-normalizer", "idna",
#     "certifi", "httpx", "httpcore", "h11", "anyio", "sniffio", "hf-xet", "pyyaml", "tqdm",
#     "packaging", "typer", "pillow", "numpy",
# ]
# [tool.field]
# package = "diffusers"
# version = "0.42.1"
# ///
"""A denoising loop: the UNet in a graph for each batch size, the scheduler's step outside of it."""

import torch
from diffusers import DDIMScheduler, UNet2DModel

torch.manual_seed(0)
STEPS = 5
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=4,
)
unet = unet.cuda().eval()


class GraphedUNet:
    def __init__(self, batch):
        self.sample = torch.zeros(batch, 1, 8, 8, device="cuda")
        self.timestep = torch.zeros(batch, dtype=torch.long, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            unet(self.sample, self.timestep)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = unet(self.sample, self.timestep).sample

    def __call__(self, sample, timestep):
        self.sample.copy_(sample)
        self.timestep.fill_(timestep)
        self.graph.replay()
        return self.out.clone()


def denoise(noise, model):
    scheduler = DDIMScheduler(num_train_timesteps=50)
    scheduler.set_timesteps(STEPS)
    sample = noise
    for timestep in scheduler.timesteps.tolist():
        sample = scheduler.step(model(sample, timestep), timestep, sample).prev_sample
    return sample


with torch.no_grad():
    graphs = {}
    for batch in (2, 1, 2):
        noise = torch.randn(batch, 1, 8, 8, device="cuda")
        if batch not in graphs:
            graphs[batch] = GraphedUNet(batch)
        expected = denoise(noise, lambda sample, timestep: unet(sample, timestep).sample)
        torch.testing.assert_close(denoise(noise, graphs[batch]), expected)
        print(batch, float(expected.square().mean()))
