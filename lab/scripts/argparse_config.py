"""Options, a configuration file, logging, a seed and a class Trainer."""
# run: python {script} --epochs 2 --width=256 --out runs/a

import argparse
import json
import logging
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn

log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, args):
        self.args, self.out = args, Path(args.out)
        self.device = torch.device(
            "cuda" if torch.cuda.is_available() and not args.no_cuda else "cpu"
        )
        self.model = nn.Sequential(
            nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 1)
        ).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "config.json").write_text(json.dumps(vars(args)))

    def fit(self):
        for epoch in range(self.args.epochs):
            x = torch.from_numpy(np.random.rand(32, 64).astype("float32")).to(self.device)
            self.optimizer.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            log.info("epoch %d: %.3f", epoch, loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    logging.basicConfig(level=logging.INFO)
    Trainer(args).fit()
