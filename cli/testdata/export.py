"""Logs memory of the run it is part of to a real tracker, offline, and prints what the tracker has."""

import os
import sys
import time

import memroom


def wait(export):
    """Readings come twice a second; the test follows them, not the clock."""
    end = time.monotonic() + 120
    while export.sent < 3 and time.monotonic() < end:
        time.sleep(0.1)
    export.close()
    if export.problem:
        sys.exit(export.problem)


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboardX import SummaryWriter

    with SummaryWriter(folder) as writer:
        wait(memroom.log_to(writer, every=0.2))
    events = EventAccumulator(folder)
    events.Reload()
    host = events.Scalars("memroom/host_bytes")
    assert len(host) >= 3 and [e.step for e in host] == sorted(e.step for e in host), host
    return {"memroom/host_bytes": host[-1].value, "memroom/seconds": host[-1].step / 1000}


def wandb(folder):
    os.environ.update(WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
    import wandb

    run = wandb.init(project="p")
    export = memroom.log_to(wandb, every=0.2)
    for step in range(5):
        run.log({"loss": 1.0 / (step + 1)}, step=step)
    wait(export)
    run.log({"loss": 0.1}, step=5, commit=True)
    values = {}
    end = time.monotonic() + 60
    while values.get("_step") != 5 and time.monotonic() < end:  # the client works beside us
        values = dict(run.summary)
        time.sleep(0.1)
    run.finish()
    assert values["loss"] == 0.1 and values["_step"] == 5, values  # the user's own steps stay
    return values


def mlflow(folder):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri("file://" + folder + "/mlruns")
    with mlflow.start_run() as run:
        wait(memroom.log_to(mlflow, every=0.2))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "memroom/host_bytes")
    assert len(history) >= 3, history
    return dict(mlflow.get_run(run.info.run_id).data.metrics)


def trackio(folder):
    os.environ.update(TRACKIO_DIR=folder, HF_HUB_OFFLINE="1")
    import trackio

    run = trackio.init(project="p", embed=False)
    seen = []
    log = run.log

    def keep(values, *args, **more):
        seen.append(dict(values))
        return log(values, *args, **more)

    run.log = keep
    wait(memroom.log_to(run, every=0.2))
    trackio.finish()
    return seen[-1]


def main():
    kind, folder = sys.argv[1:]
    values = {
        "tensorboard": tensorboard,
        "wandb": wandb,
        "mlflow": mlflow,
        "trackio": trackio,
    }[kind](folder)
    print("host", int(values["memroom/host_bytes"]), "at", values.get("memroom/seconds", 0))


main()
