"""TensorFlow: tells the monitor that it is there."""

from . import steps


def install(tensorflow):
    steps.begin("tensorflow", str(getattr(tensorflow, "__version__", "")))
