"""The shape of a YOLO training: images with unlike numbers of boxes, a head on three scales,
targets matched to cells by masks, accumulation up to a nominal batch, EMA, a results file."""

import copy
import math
import os
import random
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

nc, imgsz, batch_size, nominal = 20, 160, 16, 64
strides, width = (8, 16, 32), 16


class Boxes(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        count = 1 + index % 7
        labels = torch.zeros(count, 6)
        labels[:, 1] = torch.randint(0, nc, (count,))
        labels[:, 2:] = torch.rand(count, 4)
        return torch.randint(0, 255, (3, imgsz, imgsz), dtype=torch.uint8), labels

    @staticmethod
    def collate_fn(batch):
        images, labels = zip(*batch)
        for i, label in enumerate(labels):
            label[:, 0] = i
        return torch.stack(images, 0), torch.cat(labels, 0)


class Conv(nn.Module):
    def __init__(self, i, o, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(o, eps=0.001, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class C3(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        h = o // 2
        self.cv1, self.cv2, self.cv3 = Conv(i, h), Conv(i, h), Conv(2 * h, o)
        self.m = nn.Sequential(Conv(h, h), Conv(h, h, 3))

    def forward(self, x):
        y = self.cv1(x)
        return self.cv3(torch.cat((y + self.m(y), self.cv2(x)), 1))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        w = width
        self.stem = nn.Sequential(Conv(3, w, 3, 2), Conv(w, 2 * w, 3, 2), C3(2 * w, 2 * w))
        self.p3 = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), C3(4 * w, 4 * w))
        self.p4 = nn.Sequential(Conv(4 * w, 8 * w, 3, 2), C3(8 * w, 8 * w))
        self.p5 = nn.Sequential(Conv(8 * w, 16 * w, 3, 2), C3(16 * w, 16 * w))
        self.up = nn.Upsample(None, 2, "nearest")
        self.head = nn.ModuleList(nn.Conv2d(c * w, 3 * (nc + 5), 1) for c in (12, 24, 16))

    def forward(self, x):
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = torch.cat((self.up(p5), p4), 1)
        out = []
        for head, p in zip(self.head, (torch.cat((self.up(p4), p3), 1), n4, p5)):
            y = head(p)
            b, _, h, w = y.shape
            out.append(y.view(b, 3, nc + 5, h, w).permute(0, 1, 3, 4, 2).contiguous())
        return out


def compute_loss(predictions, targets):
    box, objectness, classes = (torch.zeros(1, device=targets.device) for _ in range(3))
    for p, stride in zip(predictions, strides):
        scale = torch.tensor(p.shape, device=targets.device)[[3, 2, 3, 2]]
        cells = targets[:, 2:6] * scale
        ratio = cells[:, 2:4] / stride
        matched = torch.max(ratio, 1.0 / ratio).max(1)[0] < 4
        t, cells = targets[matched], cells[matched]
        goal = torch.zeros(p.shape[:4], dtype=p.dtype, device=p.device)
        if t.shape[0]:
            b, c = t[:, :2].long().T
            gi, gj = cells[:, :2].long().clamp_(0).T
            anchor = torch.zeros_like(b)
            found = p[b, anchor, gj.clamp_(max=p.shape[2] - 1), gi.clamp_(max=p.shape[3] - 1)]
            xy, wh = found[:, :2].sigmoid() * 2 - 0.5, (found[:, 2:4].sigmoid() * 2) ** 2
            iou = 1 - (torch.cat((xy, wh), 1) - cells).abs().mean(1)
            box += (1.0 - iou).mean()
            goal[b, anchor, gj, gi] = iou.detach().clamp(0).type(goal.dtype)
            classes += F.binary_cross_entropy_with_logits(
                found[:, 5:], F.one_hot(c, nc).to(p.dtype)
            )
        objectness += F.binary_cross_entropy_with_logits(p[..., 4], goal)
    return (box + objectness + classes) * predictions[0].shape[0], torch.cat(
        (box, objectness, classes)
    ).detach()


def main():
    random.seed(0)
    device = torch.device("cuda:0")
    properties = torch.cuda.get_device_properties(0)
    print(f"CUDA:0 ({properties.name}, {properties.total_memory / (1 << 20):.0f}MiB)")
    folder = Path("runs/train/exp")
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    (folder / "opt.yaml").write_text(f"imgsz: {imgsz}\n")
    model = Detector().to(device)
    ema = copy.deepcopy(model).eval()
    for p in ema.parameters():
        p.requires_grad_(False)
    accumulate = max(round(nominal / batch_size), 1)
    groups = [], [], []
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            groups[2 if name == "bias" else 1 if isinstance(module, nn.BatchNorm2d) else 0].append(
                p
            )
    optimizer = torch.optim.SGD(groups[2], lr=0.01, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": groups[0], "weight_decay": 5e-4})
    optimizer.add_param_group({"params": groups[1], "weight_decay": 0.0})
    data = Boxes()
    loader = DataLoader(
        data,
        batch_size=batch_size,
        shuffle=True,
        num_workers=min(os.cpu_count(), 8),
        pin_memory=True,
        collate_fn=Boxes.collate_fn,
    )
    scaler = torch.amp.GradScaler("cuda", enabled=True)
    last_step = -1
    for epoch in range(3):
        model.train()
        optimizer.zero_grad()
        mean = torch.zeros(3, device=device)
        for i, (images, targets) in enumerate(loader):
            ni = i + epoch * len(loader)
            images = images.to(device, non_blocking=True).float() / 255
            if random.random() < 0.5:  # multi-scale
                to = [math.ceil(s / 32) * 32 for s in images.shape[2:]]
                images = F.interpolate(images, size=to, mode="bilinear", align_corners=False)
            with torch.amp.autocast("cuda"):
                loss, items = compute_loss(model(images), targets.to(device))
            scaler.scale(loss).backward()
            if ni - last_step >= accumulate:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                with torch.no_grad():
                    state = model.state_dict()
                    for k, v in ema.state_dict().items():
                        if v.dtype.is_floating_point:
                            v *= 0.99
                            v += 0.01 * state[k].detach()
                last_step = ni
            mean = (mean * i + items) / (i + 1)
            memory = f"{torch.cuda.memory_reserved() / 1e9:.3g}G"
            print(epoch, memory, *mean.tolist(), targets.shape[0], images.shape[-1])
        with open(folder / "results.csv", "a") as file:
            file.write(",".join(map(str, mean.tolist())) + "\n")
        torch.save(
            {"model": copy.deepcopy(ema).half(), "epoch": epoch}, folder / "weights" / "last.pt"
        )


if __name__ == "__main__":
    main()
