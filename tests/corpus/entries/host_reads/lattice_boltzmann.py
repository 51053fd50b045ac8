import torch


def lattice_boltzmann(device):
    """Loops over Python lists of velocities and weights, which are constant."""
    velocities = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    weights = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
    f = torch.stack([w * torch.ones(12, 12) for w in weights]).to(device)
    f[1, 3:6] += 0.02
    wall = torch.zeros(12, 12, dtype=torch.bool)
    wall[0] = True
    wall = wall.to(device)
    opposite = [0, 3, 4, 1, 2, 7, 8, 5, 6]

    def step():
        rho = f.sum(0)
        ux = sum(c[0] * f[i] for i, c in enumerate(velocities)) / rho
        uy = sum(c[1] * f[i] for i, c in enumerate(velocities)) / rho
        square = 1.5 * (ux**2 + uy**2)
        after = []
        for i, (cx, cy) in enumerate(velocities):
            cu = 3 * (cx * ux + cy * uy)
            equilibrium = rho * weights[i] * (1 + cu + 0.5 * cu**2 - square)
            after.append(f[i] - (f[i] - equilibrium) / 0.8)
        for i, shift in enumerate(velocities):
            moved = torch.where(wall, f[opposite[i]], after[i])
            after[i] = torch.roll(moved, shifts=shift, dims=(0, 1))
        torch.stack(after, out=f)
        return rho.sum()

    return step
