import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.embed = nn.Embedding(50, dim)
        self.qkv, self.head = nn.Linear(dim, 3 * dim), nn.Linear(dim, 50)
        self.register_buffer("keys", torch.zeros(1, length, dim))
        self.register_buffer("values", torch.zeros(1, length, dim))

    def forward(self, token, position):
        q, k, v = self.qkv(self.embed(token)).chunk(3, -1)
        self.keys.index_copy_(1, position, k)
        self.values.index_copy_(1, position, v)
        visible = torch.arange(self.keys.shape[1], device=token.device)[None] <= position
        out = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=visible)
        return self.head(out)[:, -1].argmax(-1, keepdim=True)


model = Decoder(32, 32).cuda().eval()
token = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
position = torch.zeros(1, dtype=torch.int64, device="cuda")


def reset():
    model.keys.zero_()
    model.values.zero_()
    position.zero_()


with torch.inference_mode():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(token, position)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        following = model(token, position)
    for prompt in (3, 7):
        reset()
        token.fill_(prompt)
        text = []
        for _ in range(10):
            graph.replay()
            text.append(following.item())
            token.copy_(following)
            position += 1
        print(text)
