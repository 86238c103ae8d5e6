#!/bin/bash
# A job script: settings, a folder, one Python command.
#SBATCH --gres=gpu:1
set -euo pipefail
export OMP_NUM_THREADS=1
EPOCHS=${1:-2}
OUT="runs/$(date +%F)"
args=(--epochs "$EPOCHS" --width 512)
mkdir -p "$OUT"
cd "$(dirname "$0")"
nohup python -u argparse_config.py "${args[@]}" \
  --out "$OUT" 2>&1 | tee "$OUT/log"
