"""The random generators that a module draws from: the host's, and that of the card it is on."""
import torch


def read(module):
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    return torch.get_rng_state(), (device, torch.cuda.get_rng_state(device)) if device.type == "cuda" else None


def put_back(states):
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1][1], states[1][0])


def same(a, b):
    return torch.equal(a[0], b[0]) and (a[1] is None or torch.equal(a[1][1], b[1][1]))
