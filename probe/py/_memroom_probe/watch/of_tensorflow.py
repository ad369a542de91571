"""TensorFlow: tells the monitor that it is there."""

from .. import guard, process


@guard.hook("tensorflow")
def install(tensorflow):
    process.remember("tensorflow", "framework", {"name": "tensorflow", "version": str(tensorflow.__version__)})
