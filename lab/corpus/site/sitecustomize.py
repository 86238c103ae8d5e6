"""On the scripts' PYTHONPATH: made data have no checksum, so torchvision only asks whether they are
there."""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torchvision.datasets.utils":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            module.check_integrity = lambda file, md5=None: Path(file).is_file()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
