import torch


def formula_is_evaluated(device):
    names = {"t": 0}
    formula = compile("1 / (1 + 0.1 * t)", "formula", "eval")

    def f(x):
        names["t"] += 1  # <- python-scalar-frozen
        return x * eval(formula, names)  # <- python-scalar-frozen

    return f, (torch.randn(8, device=device),)
