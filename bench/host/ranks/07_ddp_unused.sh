#!/usr/bin/env bash
exec python -W ignore -m torch.distributed.run --nproc-per-node 2 --master-port 29807 "${BASH_SOURCE[0]%.sh}.py"
