"""Once this is imported, ``check SCRIPT`` calls captured code no second time: as on a GPU, where a
process cannot be forked."""

from cgtool.devices.simulated import later_calls, second_call


def cannot_fork() -> bool:
    return False


for module in (later_calls, second_call):
    module.can_fork = cannot_fork
