package cli

import (
	"strings"
	"testing"
)

// TestATrialThatIsKilledForMemoryGoesOn: two trials grow beyond what both can have, so the younger
// one is killed. It begins again from its last checkpoint, with more memory, and repeats and loses
// no report: as a function, and as a class in a population.
func TestATrialThatIsKilledForMemoryGoesOn(t *testing.T) {
	needCgroup(t)
	r := newTune(t)
	out, err := r.python("killed.py", `
import json, os, tempfile, time
from memroom import tune
from memroom.tune.schedulers import PopulationBasedTraining

SIZES = [20] * 5 + [200, 1, 1]  # MiB a step

def meet(step):
    """Both trials hold something before either goes on, so neither can be whole beside the other."""
    open("../met-%d-%s" % (step, os.path.basename(os.getcwd())), "w").close()
    until = time.monotonic() + 30
    while step in (2, 4) and time.monotonic() < until and sum(
            name.startswith("met-%d-" % step) for name in os.listdir("..")) < 2:
        time.sleep(0.02)

def take(step):
    meet(step)
    return b"x" * (SIZES[step] << 20)

def steps(config):
    first, before = 0, tune.get_checkpoint()
    if before is not None:
        with open(before.path + "/state") as file:
            first = json.load(file)
    kept = [take(i) for i in range(first)]
    for i in range(first, len(SIZES)):
        kept.append(take(i))
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/state", "w") as file:
                json.dump(i + 1, file)
            tune.report({"loss": i, "first": first, "process": os.getpid()},
                        checkpoint=tune.Checkpoint.from_directory(folder))

class Steps(tune.Trainable):
    def setup(self, config):
        self.kept, self.first = [], 0

    def step(self):
        self.kept.append(take(len(self.kept)))
        return {"loss": len(self.kept) - 1, "first": self.first, "process": os.getpid(),
                "done": len(self.kept) == len(SIZES)}

    def save_checkpoint(self, folder):
        with open(folder + "/state", "w") as file:
            json.dump(len(self.kept), file)

    def load_checkpoint(self, folder):
        with open(folder + "/state") as file:
            self.first = json.load(file)
        self.kept = [take(i) for i in range(self.first)]

rule = PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=100,
                               hyperparam_mutations={"lr": tune.uniform(0, 1)})
for what, scheduler in ((steps, None), (Steps, rule)):
    r = tune.run(what, config={"lr": tune.uniform(0, 1)}, num_samples=2, metric="loss", mode="max",
                 host_mem="360MiB", scheduler=scheduler, verbose=0)
    whole = all([h["loss"] for h in t.history] == list(range(len(SIZES))) for t in r)
    again = [t for t in r if t.attempts > 1]
    print("KILLED", len(again), "WHOLE", whole, {t.state for t in r}, all(
        t.history[-1]["first"] > 0 and len({h["process"] for h in t.history}) > 1 for t in again),
        [(t.attempts, t.error) for t in r])
`)
	if err != nil || strings.Count(out, "KILLED 1 WHOLE True {'finished'} True") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}
