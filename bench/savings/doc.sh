#!/usr/bin/env bash
# Writes docs/savings.md from the measurements: bench/savings/doc.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
{
	cat <<'TEXT'
# What remedies save: predicted and measured

`explain`, `plan --fit` and `run --fit` say how many bytes a remedy saves. The figure is the engine
run on the setup (or the recording) before and after the remedy's rewrite, subtracted. This page
compares it with measurements on a card. Wrong predictions stay in the table. A saving counts as
right if it is within 10 % of the measured one.

Made by `bench/savings/doc.sh` from `bench/savings/h200.jsonl`, which `bench/gpu/savings.py`
measured (one process per setup). In that run the library's cache of keys and values was on
(`KEEP_CACHE=1`), which plan does not model: it costs GPT-2 and Llama copies of every key and value
unless checkpointing turns it off, and explains their deviations in the first table. The second
table has the same families without it.

TEXT
	go run ./bench/savings table bench/savings/h200.jsonl ../shared
	cat <<'TEXT'

Not measured, because the machine with the card lacks the library or a second card: 8-bit and paged
optimizers, 8/4-bit loading, FSDP, ZeRO, DDP's bucket view, device maps, TensorFlow's settings. They
carry `unvalidated` wherever they are offered.
TEXT
} >docs/savings.md
