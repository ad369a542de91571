"""PyTorch: tells the monitor that it is there."""

from .. import guard, process


@guard.hook("torch")
def install(torch):
    process.remember("torch", "framework", {"name": "torch", "version": str(torch.__version__)})
