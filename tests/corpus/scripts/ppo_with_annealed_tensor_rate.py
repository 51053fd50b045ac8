"""PPO: rollouts in eager mode, minibatch updates in a graph, an annealed rate in a tensor."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh()).cuda()
actor, critic = nn.Linear(16, 3).cuda(), nn.Linear(16, 1).cuda()
params = [*policy.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(
    params, lr=torch.tensor(3e-3, device="cuda"), eps=1e-5, capturable=True
)
batch = {
    "obs": torch.zeros(8, 4, device="cuda"),
    "action": torch.zeros(8, dtype=torch.long, device="cuda"),
    "logprob": torch.zeros(8, device="cuda"),
    "advantage": torch.zeros(8, device="cuda"),
    "returns": torch.zeros(8, device="cuda"),
}


def update():
    optimizer.zero_grad()
    hidden = policy(batch["obs"])
    logprobs = actor(hidden).log_softmax(-1)
    chosen = logprobs.gather(1, batch["action"][:, None]).squeeze(1)
    ratio = (chosen - batch["logprob"]).exp()
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    pg = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    value = (critic(hidden).squeeze(1) - batch["returns"]).square().mean()
    loss = pg + 0.5 * value
    loss.backward()
    nn.utils.clip_grad_norm_(params, 0.5)
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        update()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = update()

iterations = 4
for iteration in range(iterations):
    optimizer.param_groups[0]["lr"].fill_((1 - iteration / iterations) * 3e-3)
    with torch.no_grad():
        obs = torch.randn(32, 4, device="cuda")
        logprobs = actor(policy(obs)).log_softmax(-1)
        actions = torch.multinomial(logprobs.exp(), 1).squeeze(1)
        rollout = {
            "obs": obs,
            "action": actions,
            "logprob": logprobs.gather(1, actions[:, None]).squeeze(1),
            "advantage": torch.randn(32, device="cuda"),
            "returns": torch.randn(32, device="cuda"),
        }
    for rows in torch.randperm(32, device="cuda").split(8):
        for key, value in rollout.items():
            batch[key].copy_(value[rows])
        graph.replay()
    print(iteration, loss.item())
