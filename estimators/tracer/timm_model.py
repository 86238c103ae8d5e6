"""Two steps of training a timm model by name: `timm:NAME [options]`, run under the tracer."""

from __future__ import annotations

import argparse
import contextlib

import timm
import torch
from timm.optim import create_optimizer_v2


def main() -> None:
    parser = argparse.ArgumentParser(prog="timm:NAME")
    parser.add_argument("name")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--optimizer", default="sgd", help="a name that timm knows; sgd: momentum")
    parser.add_argument("--weight-decay", type=float, default=2e-5, help="as timm's train.py")
    parser.add_argument("--amp", action="store_true", help="float16 with a gradient scaler")
    parser.add_argument("--img-size", type=int, help="instead of the model's own")
    options = parser.parse_args()

    torch.backends.cudnn.benchmark = True  # as timm's own training script has it
    sized = {} if options.img_size is None else {"img_size": options.img_size}
    try:
        model = timm.create_model(options.name, **sized)
    except TypeError:  # convolutional models take any size
        model = timm.create_model(options.name)
    model = model.cuda().train()
    channels, height, width = model.default_cfg["input_size"]
    size = (options.img_size,) * 2 if options.img_size else (height, width)
    optimizer = create_optimizer_v2(
        model, options.optimizer, lr=0.01, weight_decay=options.weight_decay, momentum=0.9
    )
    scaler = torch.amp.GradScaler("cuda", enabled=options.amp)
    loss_of = torch.nn.CrossEntropyLoss()
    images = torch.randn(options.batch_size, channels, *size, device="cuda")
    labels = torch.zeros(options.batch_size, dtype=torch.long, device="cuda")
    for _ in range(2):
        with torch.autocast("cuda") if options.amp else contextlib.nullcontext():
            loss = loss_of(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
