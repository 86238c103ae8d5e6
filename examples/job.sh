#!/bin/bash
# A job script: `carma submit examples/job.sh`. Lines that start with #CARMA are options of
# `carma submit`; they stand before the first command. On emulated GPUs it trains nothing.
#CARMA --job-name resnet50
#CARMA --gpus 1 --gpu-mem 8G
#CARMA --time 2h --signal USR2@120
#CARMA --output %x-%j.out

echo "job $CARMA_JOB_ID on $CUDA_VISIBLE_DEVICES, attempt $((CARMA_RESTART_COUNT + 1))"
exec python3 examples/emulated_train.py --model resnet50 --memory-mib 7110 --seconds 20
