#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --gres=gpu:1
#SBATCH --time=00:30:00
#SBATCH --requeue
#SBATCH --open-mode=append
#HADAR model=resnet18 types=any gpus=1 batch=64 samples=90000 checkpoint=yes

# The wish to save may come before the training listens: it must not end the job then.
trap '' USR2
exec python train_digits.py --model resnet18 --samples 90000 --checkpoint "digits.$SLURM_JOB_ID.pt"
