import json
import tempfile
from pathlib import Path

import torch


def settings_file_read_each_call(device):
    folder = tempfile.mkdtemp()
    file = Path(folder) / "settings.json"
    file.write_text(json.dumps({"scale": 1}))

    def forward(x):
        settings = json.loads(file.read_text())  # <- cpu-work-in-region
        file.write_text(json.dumps({"scale": settings["scale"] + 1}))  # <- cpu-work-in-region
        return x * settings["scale"]  # <- cpu-work-in-region

    return forward, (torch.randn(4, 8, device=device),)
