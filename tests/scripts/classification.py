"""The shape of torchvision's reference for classification: a process group if launched with one,
DistributedDataParallel, label smoothing, warm-up, EMA, metrics."""

import argparse
import os
import time
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import default_collate


def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    else:
        args.distributed = False
        return
    args.distributed = True
    torch.cuda.set_device(args.gpu)
    torch.distributed.init_process_group(
        backend="nccl", init_method="env://", world_size=args.world_size, rank=args.rank
    )
    torch.distributed.barrier()


class Bottleneck(nn.Module):
    def __init__(self, channels, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != planes * 4:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, planes * 4, 1, stride, bias=False), nn.BatchNorm2d(planes * 4)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, layers=(1, 1, 1, 1), classes=100):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, channels = [], 64
        for i, count in enumerate(layers):
            for j in range(count):
                blocks.append(Bottleneck(channels, 64 << i, 2 if i and not j else 1))
                channels = 256 << i
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.fc(
            torch.flatten(nn.functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1)
        )


def accuracy(output, target, topk=(1, 5)):
    with torch.inference_mode():
        _, found = output.topk(max(topk), 1, True, True)
        correct = found.t().eq(target[None])
        return [
            correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / len(target)) for k in topk
        ]


def train_one_epoch(model, criterion, optimizer, loader, device, ema):
    model.train()
    losses = deque(maxlen=20)
    for i, (image, target) in enumerate(loader):
        begun = time.time()
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if i % 32 == 0:
            ema.update_parameters(model)
        first, fifth = accuracy(output, target)
        losses.append(loss.item())
        memory = torch.cuda.max_memory_allocated() / 1024.0**2
        print(i, sum(losses) / len(losses), first.item(), fifth.item(), memory, time.time() - begun)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--sync-bn", action="store_true")
    args = parser.parse_args()
    init_distributed_mode(args)
    device = torch.device(args.device)
    data = TensorDataset(torch.randn(256, 3, 128, 128), torch.randint(0, 100, (256,)))
    if args.distributed:
        sampler = torch.utils.data.distributed.DistributedSampler(data)
    else:
        sampler = torch.utils.data.RandomSampler(data)
    loader = DataLoader(
        data,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=16,
        pin_memory=True,
        collate_fn=lambda batch: tuple(default_collate(batch)),
    )
    model = ResNet().to(device)
    if args.distributed and args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warm_up, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 85)], [5]
    )
    model_without_ddp = model
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    ema = torch.optim.swa_utils.AveragedModel(model_without_ddp, device=device)
    for epoch in range(90):
        if args.distributed:
            sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, device, ema)
        schedule.step()
        torch.save(model_without_ddp.state_dict(), f"model_{epoch}.pth")


if __name__ == "__main__":
    main()
