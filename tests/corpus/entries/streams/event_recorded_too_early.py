import torch


def event_recorded_too_early(device):
    side = torch.cuda.Stream()
    weight, head = torch.randn(64, 64, device=device) / 8, torch.randn(64, 8, device=device)

    def forward(x):
        main = torch.cuda.current_stream()
        ready = torch.cuda.Event()
        ready.record(main)  # <- stream-race-in-capture (not shown)
        for _ in range(8):
            x = torch.tanh(x @ weight)
        with torch.cuda.stream(side):
            side.wait_event(ready)
            logits = x @ head  # <- stream-race-in-capture (not shown)
        main.wait_stream(side)
        return logits

    return forward, (torch.randn(64, 64, device=device),)
