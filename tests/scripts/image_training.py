"""The shape of timm's train.py: AMP with a scaler, channels_last, EMA, a prefetcher on a stream of
its own, output folder with arguments, summary and checkpoints."""

import argparse
import copy
import csv
import json
import logging
import os
import time
from contextlib import nullcontext
from datetime import datetime

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")


class Images(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8), index % 10


class Prefetcher:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.mean = torch.tensor([123.0, 117.0, 104.0], device=device).view(1, 3, 1, 1)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        first, input, target = True, None, None
        stream = torch.cuda.Stream(device=self.device)
        for next_input, next_target in self.loader:
            with torch.cuda.stream(stream):
                next_input = next_input.to(self.device, non_blocking=True)
                next_target = next_target.to(self.device, non_blocking=True)
                next_input = next_input.to(torch.float32).sub_(self.mean).div_(58.0)
            if not first:
                yield input, target
            else:
                first = False
            torch.cuda.current_stream(self.device).wait_stream(stream)
            input, target = next_input, next_target
        yield input, target


class Block(nn.Module):
    def __init__(self, width, stride):
        super().__init__()
        self.a = nn.Conv2d(width // stride, width, 3, stride, 1, bias=False)
        self.norm_a = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_b = nn.BatchNorm2d(width)
        self.act = nn.SiLU(inplace=True)
        self.down = nn.Conv2d(width // stride, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        out = self.norm_b(self.b(self.act(self.norm_a(self.a(x)))))
        return self.act(out + self.down(x))


def create_model(classes):
    blocks = [Block(32, 1), Block(64, 2), Block(128, 2), Block(256, 2)]
    stem = [nn.Conv2d(3, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(True)]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes)
    )


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.9998):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for mine, its in zip(self.module.state_dict().values(), model.state_dict().values()):
            mine.copy_(self.decay * mine + (1.0 - self.decay) * its)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--model-ema", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--output", default="./output/train")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    torch.manual_seed(42)

    model = create_model(10)
    log.info("parameters: %d", sum(p.numel() for p in model.parameters()))
    model.to(device=device)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    amp_autocast = lambda: torch.autocast(device.type) if args.amp else nullcontext()  # noqa: E731
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    ema = ModelEma(model).to(device) if args.model_ema else None
    loader = Prefetcher(
        DataLoader(
            Images(),
            batch_size=args.batch_size,
            shuffle=True,
            num_workers=args.workers,
            pin_memory=True,
            drop_last=True,
            persistent_workers=args.workers > 0,
        ),
        device,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)

    folder = os.path.join(args.output, datetime.now().strftime("%Y%m%d-%H%M%S"))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "args.json"), "w") as file:
        json.dump(vars(args), file)
    for epoch in range(2):
        model.train()
        total, begun = 0.0, time.time()
        for index, (input, target) in enumerate(loader):
            if args.channels_last:
                input = input.contiguous(memory_format=torch.channels_last)
            with amp_autocast():
                loss = criterion(model(input), target)
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            if ema is not None:
                ema.update(model)
            torch.cuda.synchronize()
            total += loss.item() * input.size(0)
            if index % 50 == 0:
                log.info(
                    "%d %.3f %.1f/s", index, loss.item(), input.size(0) / (time.time() - begun)
                )
        schedule.step()
        with open(os.path.join(folder, "summary.csv"), "a") as file:
            csv.writer(file).writerow([epoch, total])
        torch.save({"state_dict": model.state_dict()}, os.path.join(folder, "last.pth.tar"))


if __name__ == "__main__":
    main()
