"""Made data for the scripts of `unseen.toml`, as `made` makes them for those of `corpus.toml`."""

from __future__ import annotations

import io
import itertools
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lab.corpus.made import WORDS, _picture, _random, _sentences


def _weights(path: Path, modules: Callable[[], Any], wrap: str = "") -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    state = modules().state_dict()
    torch.save({wrap: state} if wrap else state, path)


def _mask(path: Path, classes: tuple[int, ...], side: int = 256) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = _random().choice(np.array(classes, dtype=np.uint8), (side, side))
    Image.fromarray(pixels).save(path)


def zipped(path: Path) -> None:
    """Pictures of 32 × 32 with their classes in a ZIP, as EDM's dataset_tool.py leaves them."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"00000/img{i:08}.png" for i in range(512)]
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            pixels = _random().integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file := io.BytesIO(), "png")
            archive.writestr(name, file.getvalue())
        labels = [[name, i % 10] for i, name in enumerate(names)]
        archive.writestr("dataset.json", json.dumps({"labels": labels}))


def text_pairs(path: Path) -> None:
    """`train.txt`, `dev.txt`, `test.txt` with two texts and a label a line, between tabs."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 3000), ("dev", 300), ("test", 300)):
        labels = ("entailment", "neutral", "contradiction")
        lines = (f"{s}\t{s[::-1]}\t{labels[i % 3]}\n" for i, s in enumerate(_sentences(count, 12)))
        (path / f"{part}.txt").write_text("".join(lines))


def skeletons(path: Path) -> None:
    """NTU RGB+D as HCN-pytorch converts it: people's 25 joints in 300 frames."""
    import pickle

    path.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        count = 128
        values = _random().normal(size=(count, 3, 300, 25, 2)).astype(np.float32)
        np.save(path / f"{part}_data.npy", values)
        np.save(path / f"{part}_num_frame.npy", np.full(count, 100))
        names = [f"made{i}" for i in range(count)]
        (path / f"{part}_label.pkl").write_bytes(
            pickle.dumps((names, [i % 60 for i in range(count)]))
        )


def speech(path: Path) -> None:
    """What preprocess.py of keonlee9420's models makes of the sentences in `train.txt`, `val.txt`:
    the first 400 and 16 of them."""
    rng = _random()
    for part, count in (("train", 400), ("val", 16)):
        lines = (path / f"{part}.txt").read_text().splitlines()[:count]
        (path / f"{part}.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            name, speaker, phones, _ = line.split("|")
            lengths = rng.integers(2, 6, len(phones.strip("{}").split()))
            frames = int(lengths.sum())
            values = {
                "mel": rng.normal(size=(frames, 80)).astype(np.float32),
                "pitch": rng.normal(size=frames),
                "f0": rng.uniform(80, 300, frames),
                "energy": rng.normal(size=frames).astype(np.float32),
                "duration": lengths,
                "mel2ph": np.repeat(np.arange(len(lengths)) + 1, lengths),
                "cwt_spec": rng.normal(size=(frames, 10)),
                "f0cwt_mean_std": np.array([5.2, 0.3]),
            }
            if "GAN" in str(path):  # its energies are of phonemes
                values["energy"] = rng.normal(size=len(lengths)).astype(np.float32)
            for kind, value in values.items():
                (path / kind).mkdir(exist_ok=True)
                np.save(path / kind / f"{speaker}-{kind}-{name}.npy", value)


def vocoder(path: Path) -> None:
    """Weights of the HiFi-GAN that lies beside it."""
    import importlib.util

    def modules() -> Any:
        sys.path.insert(0, str(path.parent.parent))
        try:
            spec = importlib.util.spec_from_file_location("hifigan", path.parent / "__init__.py")
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            sys.modules["hifigan"] = module
            spec.loader.exec_module(module)
        finally:
            sys.path.pop(0)
        config = json.loads((path.parent / "config.json").read_text())
        return module.Generator(module.AttrDict(config))

    _weights(path, modules, "generator")


def meshes(path: Path) -> None:
    """Closed meshes of 500 triangles in classes, each with `train` and `test`."""
    ring, rings = 10, 25
    turns = np.linspace(0, 2 * np.pi, ring, endpoint=False)
    rng = _random()
    for label in ("ants", "cats"):
        for part in ("train", "test"):
            for i in range(16):
                points = [(0.0, 0.0, 1.0)]
                for height in np.linspace(0.9, -0.9, rings):
                    wide = np.sqrt(1 - height**2) * rng.uniform(0.8, 1.2)
                    points += [(wide * np.cos(t), wide * np.sin(t), height) for t in turns]
                points.append((0.0, 0.0, -1.0))
                triangles = []
                for k in range(ring):
                    n = (k + 1) % ring
                    triangles.append((1, 2 + k, 2 + n))
                    for r in range(rings - 1):
                        a, b = 2 + r * ring, 2 + (r + 1) * ring
                        triangles += [(a + k, b + k, b + n), (a + k, b + n, a + n)]
                    last = 2 + (rings - 1) * ring
                    triangles.append((len(points), last + n, last + k))
                folder = path / label / part
                folder.mkdir(parents=True, exist_ok=True)
                lines = [f"v {x:.5f} {y:.5f} {z:.5f}" for x, y, z in points]
                lines += [f"f {a} {b} {c}" for a, b, c in triangles]
                (folder / f"T{i}.obj").write_text("\n".join(lines) + "\n")


def office(path: Path) -> None:
    """The pictures that Office's lists in the path name."""
    _picture(path / "one.jpg", 300)
    for page in path.glob("*_list.txt"):
        for line in page.read_text().splitlines():
            target = path.parent.parent / line.split()[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.hardlink_to(path / "one.jpg")


def many_images(path: Path) -> None:
    """ImageFolders `train` and `val` of the same few pictures, enough for eight large batches."""
    for part, count in (("train", 1280), ("val", 320)):
        for i in range(count):
            one, target = path / part / "n0/0.jpg", path / part / f"n{i % 10}" / f"{i}.jpg"
            if not one.exists():
                _picture(one)
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                target.hardlink_to(one)


def vit(path: Path) -> None:
    """R50+ViT-B_16 as Google's archive of arrays."""
    rng, arrays = _random(), {}

    def put(name: str, *shape: int) -> None:
        arrays[name] = (rng.random(shape, dtype=np.float32) - 0.5) * 0.04

    def put_unit(block: str, unit: int, wide: int, narrow: int, out: int) -> None:
        at = f"{block}/unit{unit}"
        for i, shape in enumerate(
            ((1, 1, wide, narrow), (3, 3, narrow, narrow), (1, 1, narrow, out))
        ):
            put(f"{at}/conv{i + 1}/kernel", *shape)
            for part in ("scale", "bias"):
                put(f"{at}/gn{i + 1}/{part}", 1, 1, 1, shape[-1])
        if unit == 1:
            put(f"{at}/conv_proj/kernel", 1, 1, wide, out)
            for part in ("scale", "bias"):
                put(f"{at}/gn_proj/{part}", 1, 1, 1, out)

    put("conv_root/kernel", 7, 7, 3, 64)
    for part in ("scale", "bias"):
        put(f"gn_root/{part}", 1, 1, 1, 64)
        put(f"Transformer/encoder_norm/{part}", 768)
    for block, (units, narrow) in enumerate(((3, 64), (4, 128), (9, 256))):
        out = narrow * 4
        for unit in range(units):
            wide = out if unit else (64 if block == 0 else out // 2)
            put_unit(f"block{block + 1}", unit + 1, wide, narrow, out)
    put("embedding/kernel", 1, 1, 1024, 768)
    put("embedding/bias", 768)
    for layer in range(12):
        at = f"Transformer/encoderblock_{layer}"
        for part in ("query", "key", "value"):
            put(f"{at}/MultiHeadDotProductAttention_1/{part}/kernel", 768, 12, 64)
            put(f"{at}/MultiHeadDotProductAttention_1/{part}/bias", 12, 64)
        put(f"{at}/MultiHeadDotProductAttention_1/out/kernel", 12, 64, 768)
        put(f"{at}/MultiHeadDotProductAttention_1/out/bias", 768)
        for dense, shape in ((0, (768, 3072)), (1, (3072, 768))):
            put(f"{at}/MlpBlock_3/Dense_{dense}/kernel", *shape)
            put(f"{at}/MlpBlock_3/Dense_{dense}/bias", shape[1])
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            for part in ("scale", "bias"):
                put(f"{at}/{norm}/{part}", 768)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def coco_json(path: Path) -> None:
    """COCO 2017 with its stuff: pictures, boxes and outlines."""
    notes = path / "annotations"
    (notes / "deprecated-challenge2017").mkdir(parents=True, exist_ok=True)
    things = [{"id": i, "name": f"thing{i}"} for i in range(1, 91)]
    stuff = [{"id": i, "name": f"stuff{i}"} for i in range(92, 183)]
    outline = [[20, 20, 120, 20, 120, 120, 20, 120]]
    for part in ("train", "val"):
        ids = list(range(1, 65))
        shown = [{"id": i, "file_name": f"{i:012}.jpg", "width": 256, "height": 256} for i in ids]
        for one in shown:
            _picture(path / "images" / f"{part}2017" / str(one["file_name"]))
        for kind, classes in (("instances", things), ("stuff", stuff)):
            found = [
                {
                    "id": 10 * i + k,
                    "image_id": i,
                    "category_id": classes[(i + k) % 80]["id"],
                    "bbox": [20, 20, 100, 100],
                    "area": 10_000,
                    "iscrowd": 0,
                    "segmentation": outline,
                }
                for i in ids
                for k in range(3)
            ]
            table = {"images": shown, "categories": classes, "annotations": found}
            (notes / f"{kind}_{part}2017.json").write_text(json.dumps(table))
        page = notes / "deprecated-challenge2017" / f"{part}-ids.txt"
        page.write_text("".join(f"{i}\n" for i in ids))


def _vgg_features() -> list[Any]:
    """VGG-16's convolutions, before its last pooling."""
    from torch import nn

    layers: list[Any] = []
    wide = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512):
        layers += (
            [nn.Conv2d(wide, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2, 2)]
        )
        wide = width or wide
    return layers


def vgg16(path: Path) -> None:
    """torchvision's VGG-16 where torch.hub keeps what it downloads."""

    def modules() -> Any:
        from torch import nn

        dense = [nn.Linear(512 * 7 * 7, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000)]
        rest = (nn.ReLU(), nn.Dropout())
        classifier = nn.Sequential(dense[0], *rest, dense[1], *rest, dense[2])
        return nn.ModuleDict(
            {"features": nn.Sequential(*_vgg_features()), "classifier": classifier}
        )

    _weights(path / "hub" / "checkpoints" / "vgg16-397923af.pth", modules)


def resnet18(path: Path) -> None:
    """torchvision's ResNet-18 where torch.hub keeps what it downloads."""

    def modules() -> Any:
        from torch import nn

        def block(wide: int, width: int) -> nn.Module:
            found: dict[str, nn.Module] = {}
            for i, inner in enumerate((wide, width)):
                found[f"conv{i + 1}"] = nn.Conv2d(inner, width, 3, bias=False)
                found[f"bn{i + 1}"] = nn.BatchNorm2d(width)
            if wide != width:
                shortcut = (nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))
                found["downsample"] = nn.Sequential(*shortcut)
            return nn.ModuleDict(found)

        widths = (64, 64, 128, 256, 512)
        layers: dict[str, nn.Module] = {
            f"layer{i + 1}": nn.Sequential(block(wide, width), block(width, width))
            for i, (wide, width) in enumerate(itertools.pairwise(widths))
        }
        layers |= {"conv1": nn.Conv2d(3, 64, 7, bias=False), "bn1": nn.BatchNorm2d(64)}
        return nn.ModuleDict(layers | {"fc": nn.Linear(512, 1000)})

    _weights(path / "hub" / "checkpoints" / "resnet18-5c106cde.pth", modules)


def penn(path: Path) -> None:
    """`ptb.train.txt`, `ptb.valid.txt`, `ptb.test.txt`, as Mikolov's archive has them."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4000), ("valid", 400), ("test", 400)):
        (path / f"ptb.{part}.txt").write_text("\n".join(_sentences(count)) + "\n")


def polyps(path: Path) -> None:
    """Pictures with masks, for training and in five sets for tests."""
    tests = ("CVC-300", "CVC-ClinicDB", "Kvasir", "CVC-ColonDB", "ETIS-LaribPolypDB", "test")
    for folder, inner, outer in (
        ("TrainDataset", "images", "masks"),
        *((f"TestDataset/{one}", "images", "masks") for one in tests),
    ):
        for i in range(32):
            _picture(path / folder / inner / f"{i}.png")
            _mask(path / folder / outer / f"{i}.png", (0, 255))


def unmatched(path: Path) -> None:
    """Weights of which none has a layer's name, for scripts that take those whose names agree."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"head.weight": torch.zeros(1000, 512)}, path)


def long_tail(path: Path) -> None:
    """`…_train.txt`, `…_val.txt`, `…_test.txt` with pictures' paths and classes."""
    path.mkdir(parents=True, exist_ok=True)
    classes = {"ImageNet_LT": 1000, "Places_LT": 365}[path.name]
    _picture(path / "one.jpg")
    where = (path / "one.jpg").resolve()
    for part, count in (("train", 3), ("val", 1), ("test", 1)):
        lines = (f"{where} {i}\n" for i in range(classes) for _ in range(count))
        (path / f"{path.name}_{part}.txt").write_text("".join(lines))


def tokyo(path: Path) -> None:
    """The pictures that DGC-Net's table of transformations names, and a table to train on."""
    tables = path.parent / "data" / "csv"
    head, *rows = (tables / "homo_aff_tps_test.csv").read_text().splitlines()[:200]
    for name in ("train", "test"):
        (tables / f"homo_aff_tps_{name}.csv").write_text("\n".join((head, *rows)) + "\n")
    from PIL import Image

    pixels = _random().integers(0, 256, (480, 640, 3), dtype=np.uint8)
    path.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path / "one.jpg")
    for row in rows:
        target = path / row.split(",")[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.hardlink_to(path / "one.jpg")


def lines(path: Path) -> None:
    """One sentence a line, and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_sentences(4000)) + "\n")


def glove(path: Path) -> None:
    """300 numbers for each word of the made sentences."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = " ".join("0.01" for _ in range(300))
    path.write_text("".join(f"{word} {numbers}\n" for word in WORDS))


MAKERS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        *(zipped, text_pairs, skeletons, speech, vocoder, meshes, office, vit, coco_json, vgg16),
        *(many_images, polyps, unmatched, long_tail, tokyo, lines, glove, resnet18, penn),
    )
}
