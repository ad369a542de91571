"""Whether autocast is on: each kind of device has a switch of its own."""

import torch


def is_on(device: torch.device) -> bool:
    if device.type == "cpu":
        return bool(torch.is_autocast_cpu_enabled())
    return bool(torch.is_autocast_enabled())


def is_on_anywhere() -> bool:
    return bool(torch.is_autocast_cpu_enabled() or torch.is_autocast_enabled())
