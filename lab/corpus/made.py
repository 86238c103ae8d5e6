"""Made data in the formats that public scripts read: a few random pixels, and words of no language.
Each maker fills a path."""

from __future__ import annotations

import csv
import json
import pickle
import random
import string
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from estimators.look import patches
from estimators.tracer import patching
from estimators.tracer.recording import Recorder

WORDS = [
    f"{a}{b}" for a in ("ka", "lo", "mi", "ne", "ru", "sa", "ti") for b in ("ba", "do", "fe", "gu")
]
CLASSES = 10
TOPICS = (
    *("Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods"),
    *("Reinforcement_Learning", "Rule_Learning", "Theory"),
)


def _random() -> Any:
    return np.random.default_rng(0)


def _sentences(count: int, words: int = 18) -> Iterator[str]:
    chance = random.Random(0)
    for _ in range(count):
        yield " ".join(chance.choices(WORDS, k=words))


def _picture(path: Path, side: int = 256, mode: str = "RGB") -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    pixels = _random().integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def mnist(path: Path, folder: str = "MNIST", count: int = 6000) -> None:
    """As torchvision keeps it under its root."""
    raw = path / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, many in (("train", count), ("t10k", count // 6)):
        pixels = _random().integers(0, 256, (many, 28, 28), dtype=np.uint8)
        labels = (np.arange(many) % CLASSES).astype(np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, many, 28, 28) + pixels.tobytes()
        )
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, many) + labels.tobytes()
        )


def whole_mnist(path: Path) -> None:
    """As many digits as in the real one, for scripts that count on that."""
    mnist(path, count=60_000)


def _cifar(folder: Path, files: dict[str, int], key: bytes, meta: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in files.items():
        batch = {
            b"data": _random().integers(0, 256, (count, 3072), dtype=np.uint8),
            key: [i % CLASSES for i in range(count)],
        }
        (folder / name).write_bytes(pickle.dumps({k.decode(): v for k, v in batch.items()}))
    for name, value in meta.items():
        (folder / name).write_bytes(pickle.dumps(value))


def cifar10(path: Path) -> None:
    """Scripts must not verify its checksums: see `requirements.txt`."""
    files = {f"data_batch_{i}": 2000 for i in range(1, 6)} | {"test_batch": 1000}
    meta = {"batches.meta": {"label_names": [str(i) for i in range(10)]}}
    _cifar(path / "cifar-10-batches-py", files, b"labels", meta)


def cifar100(path: Path) -> None:
    meta = {"meta": {"fine_label_names": [str(i) for i in range(100)]}}
    _cifar(path / "cifar-100-python", {"train": 5000, "test": 1000}, b"fine_labels", meta)


def images(path: Path) -> None:
    """ImageFolders `train` and `val`."""
    for part in ("train", "val"):
        for label in range(4):
            for i in range(40):
                _picture(path / part / f"n{label:08}" / f"{i}.jpg")


def pictures(path: Path) -> None:
    """A flat folder."""
    for i in range(128):
        _picture(path / f"{i:04}.jpg")


def folder(path: Path) -> None:
    """One ImageFolder."""
    for label in range(4):
        for i in range(16):
            _picture(path / f"class{label}" / f"{i}.jpg")


def pairs(path: Path) -> None:
    """`trainA`, `trainB`, `testA`, `testB`; and `train`, `val`, `test` with two
    pictures side by side."""
    from PIL import Image

    for part in ("trainA", "trainB", "testA", "testB", "train/A", "train/B", "test/A", "test/B"):
        for i in range(8):
            _picture(path / part / f"{i}.jpg")
    for part in ("train", "val", "test"):
        (path / part).mkdir(exist_ok=True)
        for i in range(8):
            pixels = _random().integers(0, 256, (256, 512, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / part / f"{i}.jpg")


def masks(path: Path) -> None:
    """Pictures with masks of two classes, as Pytorch-UNet wants them."""
    from PIL import Image

    for i in range(20):
        _picture(path / "imgs" / f"{i}.png")
        (path / "masks").mkdir(exist_ok=True)
        mask = _random().integers(0, 2, (256, 256), dtype=np.uint8)
        Image.fromarray(mask).save(path / "masks" / f"{i}.png")


def words(path: Path) -> None:
    """`train.txt`, `valid.txt`, `test.txt`."""
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4000), ("valid", 400), ("test", 400)):
        (path / f"{part}.txt").write_text("\n".join(_sentences(count)) + "\n")


def text(path: Path) -> None:
    """One file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((string.printable, *_sentences(8000))) + "\n")


def names(path: Path) -> None:
    """One word a line."""
    path.write_text("\n".join(f"{a}{b}" for a in WORDS for b in WORDS) + "\n")


def tokens(path: Path) -> None:
    """`train.bin` and `val.bin`, and the `meta.pkl` of nanoGPT's character level."""
    path.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        _random().integers(0, 65, 200_000, dtype=np.uint16).tofile(path / f"{part}.bin")
    signs = {i: chr(48 + i) for i in range(65)}
    meta = {"vocab_size": 65, "itos": signs, "stoi": {v: k for k, v in signs.items()}}
    (path / "meta.pkl").write_bytes(pickle.dumps(meta))


def jsonl(path: Path) -> None:
    """Lines with `text`, `prompt`, `completion`, `label`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for i, sentence in enumerate(_sentences(400)):
            row = {
                "text": sentence,
                "prompt": sentence,
                "completion": sentence[::-1],
                "label": i % 2,
            }
            file.write(json.dumps(row) + "\n")


def preferences(path: Path) -> None:
    """Lines with `prompt`, `chosen`, `rejected`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for sentence in _sentences(400):
            row = {"prompt": sentence, "chosen": sentence[:40], "rejected": sentence[-40:]}
            file.write(json.dumps(row) + "\n")


def llama(path: Path) -> None:
    """A small model with a tokenizer, as `from_pretrained` reads it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    patching.install(patches("torchvision"), Recorder())
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ("<pad>", "<s>", "</s>", "<unk>")
    signs = {word: i for i, word in enumerate((*special, *WORDS))}
    tokenizer = Tokenizer(WordLevel(signs, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    config = LlamaConfig(
        vocab_size=len(signs),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    fast.save_pretrained(path)


def pets(path: Path) -> None:
    """Files named after their class: `cat_12.jpg`."""
    for i in range(32):
        _picture(path / f"{('cat', 'dog')[i % 2]}_{i}.jpg")


def enwik8(path: Path) -> None:
    import gzip

    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb") as file:
        file.write(_random().integers(32, 127, 95_000_000 + 1000, dtype=np.uint8).tobytes())


def series(path: Path) -> None:
    """Hourly values in a CSV with `date` and `OT`, as the ETT data sets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    values = _random().normal(size=(17420, len(columns)))
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("date", *columns))
        for hour, row in enumerate(values):
            stamp = np.datetime64("2016-07-01T00:00:00") + np.timedelta64(hour, "h")
            rows.writerow((str(stamp).replace("T", " "), *(f"{v:.4f}" for v in row)))


def waves(path: Path) -> None:
    """Sines, as pytorch/examples' generate_sine_wave.py saves them."""
    import torch

    starts = _random().integers(-80, 80, (100, 1))
    torch.save(np.sin((np.arange(1000) + starts) / 20.0), path)


def cora(path: Path) -> None:
    """`cora.content` and `cora.cites`."""
    path.mkdir(parents=True, exist_ok=True)
    rng, papers, features = _random(), 2708, 1433
    with (path / "cora.content").open("w") as file:
        for paper in range(papers):
            bits = "\t".join(map(str, (rng.random(features) < 0.01).astype(int)))
            file.write(f"{paper}\t{bits}\t{TOPICS[paper % len(TOPICS)]}\n")
    with (path / "cora.cites").open("w") as file:
        for a, b in rng.integers(0, papers, (5429, 2)):
            file.write(f"{a}\t{b}\n")


def coco(path: Path) -> None:
    """Pictures and labels as YOLO reads them, with a `data.yaml`."""
    chance = _random()
    for part, count in (("train", 128), ("val", 16)):
        for i in range(count):
            _picture(path / "images" / part / f"{i}.jpg", 320)
            label = path / "labels" / part / f"{i}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            boxes = np.round(chance.uniform(0.2, 0.6, (4, 4)), 4)
            label.write_text("".join(f"{k} {' '.join(map(str, b))}\n" for k, b in enumerate(boxes)))
    names = "".join(f"  {i}: thing{i}\n" for i in range(4))
    where = f"path: {path.resolve()}\ntrain: images/train\nval: images/val\n"
    (path / "data.yaml").write_text(f"{where}nc: 4\nnames:\n{names}")


def segments(path: Path) -> None:
    """Pascal VOC 2012, as torchvision reads it."""
    from PIL import Image

    root = path / "VOCdevkit" / "VOC2012"
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True, exist_ok=True)
    (root / "SegmentationClass").mkdir(exist_ok=True)
    for i in range(16):
        _picture(root / "JPEGImages" / f"{i:06}.jpg")
        mask = _random().integers(0, 21, (256, 256), dtype=np.uint8)
        Image.fromarray(mask).save(root / "SegmentationClass" / f"{i:06}.png")
    for part in ("train", "val", "trainval"):
        (lists / f"{part}.txt").write_text("".join(f"{i:06}\n" for i in range(16)))


def shards(path: Path) -> None:
    """`…train….npy` and `…val….npy` of tokens, as build-nanogpt reads FineWeb."""
    path.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        np.save(path / f"made_{part}_000000.npy", _random().integers(0, 50257, 600_000, np.uint16))


def stories(path: Path) -> None:
    """`data00.bin` and on of tokens, as llama2.c keeps its stories."""
    path.mkdir(parents=True, exist_ok=True)
    for i in range(3):
        _random().integers(1, 32000, 200_000, dtype=np.uint16).tofile(path / f"data{i:02}.bin")


def celeba(path: Path) -> None:
    """`images` and `list_attr_celeba.txt`, whose rows are of the same few pictures."""
    pictures(path / "images")
    signs = ("Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "Young", "Smiling")
    rows = (
        f"{i % 32:04}.jpg {' '.join('1' if i >> k & 1 else '-1' for k in range(len(signs)))}"
        for i in range(2600)
    )
    text = "\n".join(("2600", " ".join(signs), *rows))
    (path / "list_attr_celeba.txt").write_text(text + "\n")


def headlines(path: Path) -> None:
    """Lines of a text, a tab and the number of its class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{s}\t{i % CLASSES}\n" for i, s in enumerate(_sentences(2000))))


def vectors(path: Path) -> None:
    """Words with 300 numbers each, as GloVe's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = " ".join("0.01" for _ in range(300))
    path.write_text("".join(f"{word} {numbers}\n" for word in ("the", "food", "is", "good")))


def blender(path: Path) -> None:
    """Views of a scene with their cameras, as NeRF's synthetic data; smaller ones."""
    from PIL import Image

    pose = np.eye(4).tolist()
    for part in ("train", "val", "test"):
        (path / part).mkdir(parents=True, exist_ok=True)
        for i in range(8):
            pixels = _random().integers(0, 256, (200, 200, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(path / part / f"r_{i}.png")
        frames = [
            {"file_path": f"./{part}/r_{i}", "rotation": 0.1, "transform_matrix": pose}
            for i in range(8)
        ]
        meta = {"camera_angle_x": 0.69, "frames": frames}
        (path / f"transforms_{part}.json").write_text(json.dumps(meta))


def points(path: Path) -> None:
    """ModelNet40 with normals: ten shapes of a thousand points."""
    names = [f"thing{i}" for i in range(40)]
    path.mkdir(parents=True, exist_ok=True)
    (path / "modelnet40_shape_names.txt").write_text("\n".join(names) + "\n")
    for part, count in (("train", 48), ("test", 32)):
        ids = [f"{names[i % 40]}_{part}{i:04}" for i in range(count)]
        (path / f"modelnet40_{part}.txt").write_text("\n".join(ids) + "\n")
        for one in ids:
            folder = path / one.rpartition("_")[0]
            folder.mkdir(exist_ok=True)
            np.savetxt(folder / f"{one}.txt", _random().normal(size=(1100, 6)), "%.4f", ",")


def chats(path: Path) -> None:
    """Lines with `conversations`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for sentence in _sentences(200):
            rest = dict.fromkeys(("reasoning_content", "tools", "tool_calls"), "")
            said = [
                {"role": "user", "content": sentence, **rest},
                {"role": "assistant", "content": sentence[::-1], **rest},
            ]
            file.write(json.dumps({"conversations": said}) + "\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        *(mnist, whole_mnist, cifar10, cifar100, images, pictures, folder, pairs, masks),
        *(words, text),
        *(
            names,
            tokens,
            jsonl,
            preferences,
            llama,
            pets,
            enwik8,
            series,
            waves,
            cora,
            coco,
            segments,
        ),
        *(shards, stories, celeba, headlines, vectors, blender, points, chats),
    )
}
