#!/usr/bin/env bash
# Two ranks on one card, over gloo: the second dies of GPU memory, catches it and sleeps, or catches it and goes on. The verdicts must be gpu and rank 1,
# the same with killed_by memroom after ten times the grace, and none. About a minute, bounded. Needs a card and torch; MEMROOM=path of the binary, OUT=folder.
out=${OUT:-.}; M=${MEMROOM:-bin/memroom}; work=$(mktemp -d); export MEMROOM_HOME=$work/home
cat > "$work/ranks.py" <<'PY'
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo"); rank = dist.get_rank()
torch.cuda.set_per_process_memory_fraction(0.02)
model = torch.nn.Linear(512, 512).cuda(); ddp = torch.nn.parallel.DistributedDataParallel(model); opt = torch.optim.SGD(ddp.parameters(), lr=.1)
for step in range(100000):
    x = torch.randn(64, 512, device="cuda")
    if rank == 1 and step == 40:
        if sys.argv[1] == "die": torch.empty(1 << 34, device="cuda")
        try: torch.empty(1 << 34, device="cuda")
        except torch.OutOfMemoryError as e: print("caught", flush=True)
        if sys.argv[1] == "stands": time.sleep(600)
    loss = ddp(x).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step(); time.sleep(.02)
    if sys.argv[1] == "on" and step == 300: break
if rank == 0: print("done", flush=True)
dist.destroy_process_group()
PY
for mode in stands die on; do
  timeout 60 $M run --grace 1s --verdict $out/ranks-$mode.json -- python3 -m torch.distributed.run --nproc-per-node 2 --master-port 29577 $work/ranks.py $mode > $out/ranks-$mode.out 2>&1
  echo "exit $?" >> $out/ranks-$mode.out
  tail -3 $out/ranks-$mode.out; cat $out/ranks-$mode.json
done
