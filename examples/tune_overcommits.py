"""A Ray Tune study that overcommits: each trial asks for one processor and says nothing of memory,
so Ray starts as many as there are processors. Alone every trial fits; together they may not.

Giving the trials a memory resource is the cure: `tune.with_resources(train, {"cpu": 1, "memory":
...})`, with --reserve here.
"""

import argparse
import os

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")

import ray
from ray import tune


def train(config):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    held = torch.ones(
        config["mib"] << 18
    )  # float32: four bytes each, written so that they are really there
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(20):
        x = torch.randn(64, 32)
        loss = torch.nn.functional.mse_loss(model(x), x.mean(1, keepdim=True) * held[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64, help="what a trial holds")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--reserve", action="store_true", help="do it right")
    args = parser.parse_args()

    ray.init(
        "local",
        num_cpus=args.cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
    )
    resources = {"cpu": 1}
    if args.reserve:
        resources["memory"] = (args.mib + 256) << 20
    tuner = tune.Tuner(
        tune.with_resources(train, resources),
        param_space={"lr": tune.loguniform(1e-4, 1e-2), "mib": args.mib},
        tune_config=tune.TuneConfig(num_samples=args.samples, metric="loss", mode="min"),
        run_config=tune.RunConfig(verbose=0),
    )
    results = tuner.fit()
    failed = sum(1 for result in results if result.error)
    print(
        (
            f"done: {len(results)} trials, {failed} failed, best loss "
            f"{results.get_best_result().metrics['loss']:.4f}"
        ),
        flush=True,
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
