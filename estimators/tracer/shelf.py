"""Libraries that a warm tracer has imported for scripts to come, hidden until one imports them.

A script must find the modules that it would find in a new process, no more: it may look into
`sys.modules`, or have a module of its own under a library's name. So before it begins, all of these
are taken away. An import finds them again if it would load the very same file, and with it get what
that module imported when it was loaded (no module can be loaded twice: many register things with
torch). Their parents know them no longer than `sys.modules` does.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import re
import sys
import sysconfig
import types
import warnings
from typing import Any, Callable, Iterable, Iterator, NamedTuple, NoReturn

_INSTALLED = re.compile(r"(site|dist)-packages/")
_STANDARD = sysconfig.get_path("stdlib")
_OWN = __name__.partition(".")[0]


def library_names() -> list[str]:
    """The modules of installed packages and of the standard library, in the order of import."""
    found = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if not isinstance(origin, str) or name.partition(".")[0] in (_OWN, "__main__"):
            continue
        if _INSTALLED.search(origin) or origin.startswith(_STANDARD):
            found.append(name)
    return found


class Shelf(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, give_up: Callable[[], NoReturn]) -> None:
        """What is imported now stays in sight. `give_up`: called where a script would make a
        library import a module of its own, which has imported another here."""
        self._give_up = give_up
        self._base: dict[str, Any] = dict(sys.modules)
        self._filters = list(warnings.filters)
        owners = {id(owner): owner for owner in _namespaces(self._base.values())}  # once each
        self._before = [(owner, dict(vars(owner))) for owner in owners.values()]
        self._patches: dict[str, list[_Patch]] = {}  # by the module that they are from
        self._needs: dict[str, set[str]] = {}  # what a module imported, when it was loaded
        self._refused: set[str] = set()  # names that cannot be imported here
        self._hidden: dict[str, Any] = {}
        self._attached: set[str] = set()  # those that were attributes of their parents

    # ---- in the warm process

    def missing(self, names: Iterable[str]) -> list[str]:
        """The names of modules that are still to be imported here."""
        return [name for name in names if name not in sys.modules and name not in self._refused]

    def fill(self, names: Iterable[str]) -> None:
        """Import the modules, and note what each of them imports."""
        make, load = builtins.__import__, importlib.import_module
        machinery: Any = sys.modules["_frozen_importlib"]
        find = machinery._find_and_load  # the interpreter calls it by this name

        def import_(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            count = len(sys.modules)
            module = make(name, globals, locals, fromlist, level)
            if globals and "__name__" in globals:
                full = _absolute(name, globals, level)
                named = (full, *(f"{full}.{each}" for each in fromlist or ()))
                self._note(globals["__name__"], count, *named)
            return module

        def import_module(name: str, package: Any = None) -> Any:
            count = len(sys.modules)
            module = load(name, package)
            importer = sys._getframe(1).f_globals.get("__name__")
            if importer:
                self._note(importer, count, getattr(module, "__name__", name))
            return module

        def find_and_load(name: str, *rest: Any) -> Any:
            """A module in C makes others without an import, and so may any."""
            count = len(sys.modules)
            module = find(name, *rest)
            self._note(name, count)
            return module

        builtins.__import__, importlib.import_module = import_, import_module
        machinery._find_and_load = find_and_load
        try:
            for name in names:
                try:
                    load(name)
                except Exception:  # noqa: BLE001  a library's own: a script may still import it
                    self._refused.add(name)
        finally:
            builtins.__import__, importlib.import_module = make, load
            machinery._find_and_load = find
        self._patches = {}
        for owner, before in self._before:
            for name, value in list(vars(owner).items()):
                old = before.get(name, _NOTHING)
                if old is not value and (source := _source(value)) not in self._base:
                    self._patches.setdefault(source, []).append(_Patch(owner, name, old, value))

    def _note(self, importer: str, count: int, *names: str) -> None:
        """`count`: how many modules there were before."""
        needs = self._needs.setdefault(importer, set())
        needs.update(name for name in names if name in sys.modules)
        if len(sys.modules) > count:
            needs.update(list(sys.modules)[count:])

    # ---- in its children

    def hide(self) -> None:
        for name, module in list(sys.modules.items()):
            own = self._base.get(name)
            if own is not module:
                self._hidden[name] = module
                self._detach(name, module)
                if own is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = own
                    self._attach(name, own)
        for patch in (one for patches in self._patches.values() for one in patches):
            patch.undo()
        warnings.filters[:] = self._filters  # type: ignore[index]
        if self._hidden:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._hidden:
            return None
        if not self._is_found(name.partition(".")[0]):
            return None  # the script has its own
        family = self._family(name)
        if not all(map(self._is_found, {each.partition(".")[0] for each in family})):
            self._give_up()
        for patch in (one for each in family for one in self._patches.get(each, ())):
            patch.apply()
        for each in family - {name}:
            module = self._hidden.pop(each)
            if sys.modules.get(each) is self._base.get(each):
                sys.modules[each] = module
                self._attach(each, module)
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: Any) -> Any:
        module = self._hidden.pop(spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = module.__spec__.loader_state

    def _parent(self, name: str) -> Any:
        above = name.rpartition(".")[0]
        return self._hidden.get(above) or sys.modules.get(above)

    def _detach(self, name: str, module: Any) -> None:
        parent, leaf = self._parent(name), name.rpartition(".")[2]
        if parent is not None and vars(parent).get(leaf) is module:
            delattr(parent, leaf)
            self._attached.add(name)

    def _attach(self, name: str, module: Any) -> None:
        if name in self._attached:
            setattr(self._parent(name), name.rpartition(".")[2], module)

    def _family(self, name: str) -> set[str]:
        """The module and those that it needs, without the ones in sight."""
        found: set[str] = set()
        queue = [name]
        while queue:
            each = queue.pop()
            if each in found or each not in self._hidden:
                continue
            found.add(each)
            queue += self._needs.get(each, ())
            queue.append(each.rpartition(".")[0])
        return found

    def _is_found(self, package: str) -> bool:
        """Whether the script, too, would import the hidden `package` from where it was loaded."""
        module = self._hidden.get(package)
        own: Any = getattr(module, "__spec__", None)
        if _place(own) is None or own.name != package:  # it was made, not found
            return True
        if package in sys.modules:  # the script's own
            return False
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(package, None)) is not None:
                return bool(_place(spec) == _place(own))
        return False


_NOTHING = object()


class _Patch(NamedTuple):
    """A name that a library has set in a module or class of another one."""

    owner: Any
    name: str
    old: Any  # _NOTHING: there was none
    new: Any

    def undo(self) -> None:
        if self.old is _NOTHING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.old)

    def apply(self) -> None:
        setattr(self.owner, self.name, self.new)


def _namespaces(modules: Iterable[Any]) -> Iterator[Any]:
    """The modules, and the classes that they define."""
    for module in modules:
        if type(module) is types.ModuleType:
            yield module
            for value in list(vars(module).values()):
                if issubclass(type(value), type) and value.__module__ == module.__name__:
                    yield value


def _source(value: Any) -> str:
    """The name of the module that a function or a class is from; `builtins` for all else."""
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while isinstance(value, functools._lru_cache_wrapper):
        value = value.__wrapped__
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__"))
    return str(value.__module__) if type(value) is type else "builtins"


def _place(spec: Any) -> Any:
    """The file, or the folders of a package without one; None: there is no such place."""
    origin = getattr(spec, "origin", None)
    if isinstance(origin, str) and origin.startswith("/"):
        return origin
    return list(getattr(spec, "submodule_search_locations", None) or ()) or None


def _absolute(name: str, scope: Any, level: int) -> str:
    if not level:
        return name
    package = scope.get("__package__") or scope["__name__"].rpartition(".")[0]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base
