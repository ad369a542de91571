"""Ray Tune's own example scripts, from Ray's wheel, with the import of tune changed, no more.

    python bench/tune/examples.py [--ray] [NAME ...]  # with the Python of `testenv/ensure examples`

A script works when it ends well and each of its trials does. Those that download what is not here,
or import packages that are not here, are named and not counted. Data sets are made up: the examples
ask torchvision and Keras for MNIST and CIFAR-10, and get noise of the same shape.
--ray runs them unchanged, with Ray itself, those that are left out too when they are named.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NOISE = """
import importlib.util, sys

class After:
    def __init__(self, name, then): self.name, self.then = name, then
    def find_spec(self, name, path=None, target=None):
        if name != self.name: return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def both(module): run(module); self.then(module)
        spec.loader.exec_module = both
        return spec

def of_torch(module):
    class Noise(module.FakeData):
        shape = (3, 32, 32)
        def __init__(self, root=None, train=True, download=False, transform=None):
            super().__init__(256, self.shape, 10, transform)
    class Grey(Noise):
        shape = (3, 28, 28)
        def __getitem__(self, i):
            from PIL import Image
            image = Image.new("L", (28, 28), int(i) % 255)
            return (self.transform(image) if self.transform else image), int(i) % 10
    module.MNIST, module.CIFAR10 = Grey, Noise

def of_keras(shape, column):
    def patch(module):
        import numpy as np
        def some(n):
            y = np.arange(n) % 10
            return np.random.rand(n, *shape), y[:, None] if column else y
        module.load_data = lambda *a, **k: (some(256), some(64))
    return patch

for name, then in (("torchvision.datasets", of_torch),
                   ("tf_keras.src.datasets.mnist", of_keras((28, 28), False)),
                   ("tf_keras.src.datasets.cifar10", of_keras((32, 32, 3), True))):
    sys.meta_path.insert(0, After(name, then))
"""
# What these need is not here, whoever runs them.
LEFT_OUT = {
    "ax_example": "Ray's AxSearch asks Ax for what its releases for this Python no longer have",
    "bohb_example": "imports hpbandster, which has no release for this Python",
    "pb2_example": "imports GPy, which has no release for this Python",
    "pb2_ppo_example": "imports GPy",
    "pbt_ppo_example": "imports RLlib",
    "mlflow_ptl": "hands its data module and trainer arguments that they do not take",
    "mnist_ptl_mini": "hands Lightning's Trainer an argument that its releases no longer take",
    "pbt_memnn_example": "downloads a data set",
    "pbt_dcgan_mnist_func": "downloads a model",
    "pbt_dcgan_mnist_trainable": "downloads a model",
    "pbt_transformers": "downloads a model",
    "utils": "is no example",
    "common": "is no example",
}


def changed(text: str) -> str:
    text = re.sub(r"^(\s*)from ray import tune\b", r"\1from memroom import tune", text, flags=re.M)
    return re.sub(r"^(\s*)from ray\.tune import ", r"\1from memroom.tune import ", text, flags=re.M)


def run(path: str, folder: str, with_ray: bool) -> str:
    """Runs a script; returns why it does not work, or nothing."""
    with open(path) as file:
        text = file.read() if with_ray else changed(file.read())
    script = os.path.join(folder, os.path.basename(path))
    with open(script, "w") as file:
        file.write(text)
    with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
        file.write(NOISE)
    home = os.path.join(folder, "home")
    env = dict(os.environ, MEMROOM_HOME=home, HOME=folder, OMP_NUM_THREADS="1")
    env.update(
        PYTHONPATH=folder + os.pathsep + os.path.join(ROOT, "python"),
        RAY_DEDUP_LOGS="0",
        MLFLOW_ALLOW_FILE_STORE="true",
        TF_USE_LEGACY_KERAS="1",
    )
    words = [sys.executable, script] + ["--smoke-test"] * ("--smoke-test" in text)
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=env,
            timeout=900,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        return "takes longer than 15 minutes"
    with open(os.path.join(folder, "output.txt"), "wb") as out:
        out.write(done.stdout)
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode != 0:
        return "exit code %d: %s" % (done.returncode, lines[-1] if lines else "")
    if with_ray:
        wrong = [line for line in lines if "Trials did not complete" in line]
        return wrong[0] if wrong else ""
    return judged(home)


def judged(home: str) -> str:
    binary = os.environ.get("MEMROOM_BINARY", "memroom")
    studies = sorted(os.listdir(os.path.join(home, "studies")))
    if not studies:
        return "no study was run"
    for name in studies:
        shown = subprocess.run(
            [binary, "tune", "show", "--json", name],
            env=dict(os.environ, MEMROOM_HOME=home),
            stdout=subprocess.PIPE,
        )
        for trial in json.loads(shown.stdout)["trials"]:
            if trial["state"] not in ("finished", "stopped"):
                return "trial %s is %s: %s" % (trial["id"], trial["state"], trial.get("why"))
    return ""


def main() -> None:
    import ray.tune.examples

    place = os.path.dirname(str(ray.tune.examples.__file__))
    paths = sorted(glob.glob(place + "/*.py") + glob.glob(place + "/*/*.py"))
    worked, counted = 0, 0
    with_ray, names = "--ray" in sys.argv, [word for word in sys.argv[1:] if word != "--ray"]
    for path in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        if name == "__init__" or (names and name not in names):
            continue
        if name in LEFT_OUT and not (with_ray and names):
            if name not in ("utils", "common"):
                print("left out  %-45s %s" % (name, LEFT_OUT[name]), flush=True)
            continue
        counted += 1
        with tempfile.TemporaryDirectory(prefix="example-") as folder:
            why = run(path, folder, with_ray)
            if why and os.environ.get("SHOW"):
                with open(os.path.join(folder, "output.txt")) as file:
                    print(file.read()[-6000:])
        worked += not why
        print("%-9s %-45s %s" % ("no" if why else "works", name, why), flush=True)
    print("%d of %d work" % (worked, counted))


if __name__ == "__main__":
    main()
