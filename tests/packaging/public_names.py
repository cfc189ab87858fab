"""List the package's public names with their signatures.

    python tests/packaging/public_names.py

writes the list to public_names.txt, with which a test compares the package.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PACKAGE = "speechbrain_triton"
MODULES = ("", ".ops", ".modules", ".training", ".streaming", ".runs")
# It lists no names of its own to be imported from elsewhere.
PLAIN_MODULE = ".backend"
ROOT = Path(__file__).parents[2]
LISTING = Path(__file__).with_name("public_names.txt")

_YAML_TAG = re.compile(rf"!(?:new|name|apply):({PACKAGE}[.\w]+)")
_OWN_HOME = re.compile(rf"\b{PACKAGE}(?:\.[a-z_]\w*)*\.(?=[A-Z])")


def listing() -> str:
    """Return the list as text."""
    sections = []
    for name in MODULES:
        module = importlib.import_module(PACKAGE + name)
        sections.append((PACKAGE + name, _exported(module)))
    module = importlib.import_module(PACKAGE + PLAIN_MODULE)
    sections.append((PACKAGE + PLAIN_MODULE, _defined(module)))
    sections.append(("Named in YAML files, exported models' too", _in_yaml()))
    return "\n".join(
        "\n".join([f"# {title}", *lines, ""]) for title, lines in sections
    )


def _exported(module: ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        yield from _describe(name, getattr(module, name))


def _defined(module: ModuleType) -> Iterator[str]:
    for name, value in sorted(vars(module).items()):
        own = getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and (own or name.isupper()):
            yield from _describe(name, value)


def _in_yaml() -> Iterator[str]:
    """Describe what the YAML files of users name, copied from these."""
    listed = {PACKAGE + name for name in MODULES}
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("recipes", f"{PACKAGE}/streaming/templates")
        for path in (ROOT / folder).rglob("*.yaml")
        if "results" not in path.relative_to(ROOT).parts
    ]
    for dotted in sorted({n for t in texts for n in _YAML_TAG.findall(t)}):
        home, _, name = dotted.rpartition(".")
        value = getattr(importlib.import_module(home), name)
        if home in listed:
            yield dotted
        else:
            yield from _describe(dotted, value)


def _describe(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _describe_class(name, value)
    elif callable(value):
        yield f"{name}{_signature(value)}"
    elif isinstance(value, tuple):
        yield f"{name} = {value!r}"
    else:
        yield f"{name}: {type(value).__name__}"


def _describe_class(name: str, cls: type) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base is not object]
    yield f"class {name}" + (f"({', '.join(bases)})" if bases else "")
    if _is_own(cls, "__init__") or _is_own(cls, "__new__"):
        yield f"{name}{_signature(cls)}"
    for member in sorted(dir(cls)):
        found = inspect.getattr_static(cls, member)
        if member.startswith("_") or not _is_own(cls, member):
            continue
        if isinstance(found, property):
            yield f"{name}.{member}: property{_signature(found.fget)}"
        elif callable(getattr(cls, member)):
            yield f"{name}.{member}{_signature(getattr(cls, member))}"


def _is_own(cls: type, member: str) -> bool:
    """Say whether this package defines a member, and not a base of others."""
    home = next(base for base in cls.__mro__ if member in vars(base))
    return home.__module__.partition(".")[0] == PACKAGE


def _signature(value: object) -> str:
    # Where a class of ours is defined is no part of what users rely on.
    return _OWN_HOME.sub("", str(inspect.signature(value)))


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
