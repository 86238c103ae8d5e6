"""Fine-tunes torchvision's RetinaNet: anchors are matched with boxes by their values."""

import torch
from torchvision.models.detection import retinanet_resnet50_fpn

model = retinanet_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=5, min_size=128, max_size=128
).cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005)
model.train()
for _ in range(3):
    images = [torch.rand(3, 120, 128).cuda() for _ in range(2)]
    boxes = torch.tensor([[10.0, 10.0, 60.0, 80.0], [20.0, 30.0, 100.0, 110.0]])
    targets = [{"boxes": boxes.cuda(), "labels": torch.tensor([1, 2]).cuda()} for _ in images]
    losses = model(images, targets)
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()
