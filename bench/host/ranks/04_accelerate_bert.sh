#!/usr/bin/env bash
exec python -W ignore -m accelerate.commands.launch --cpu --num_processes 2 --num_machines 1 \
  --mixed_precision no --dynamo_backend no --main_process_port 29811 "${BASH_SOURCE[0]%.sh}.py"
