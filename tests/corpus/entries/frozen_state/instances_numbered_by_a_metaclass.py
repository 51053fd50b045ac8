import torch


class Numbered(type):
    def __init__(cls, name, bases, space):
        super().__init__(name, bases, space)
        cls.made = 0

    def __call__(cls, *args):
        made = super().__call__(*args)
        cls.made += 1  # <- cpu-state-step-counter
        made.number = cls.made  # <- cpu-state-step-counter
        return made


class Noise(metaclass=Numbered):
    def __init__(self, x):
        self.x = x

    def apply(self):
        return self.x / (self.x.abs() + self.number)  # <- cpu-state-step-counter


def instances_numbered_by_a_metaclass(device):
    def f(x):
        return Noise(x).apply()

    return f, (torch.randn(5, device=device),)
