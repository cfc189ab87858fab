"""The examples in docstrings run, and every public name has what it needs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import speechbrain_triton

# __main__ runs the program.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        speechbrain_triton.__path__, "speechbrain_triton."
    )
    if not module.name.endswith("__main__")
]
PUBLIC = ("", ".modules", ".ops", ".training", ".streaming", ".corpora")


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    module = importlib.import_module("speechbrain_triton.swap")
    assert any(test.examples for test in finder.find(module))
    assert len(MODULES) > 100


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, request, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    # As pytest's own runner of doctests has it.
    fixtures = {"getfixture": request.getfixturevalue}
    failed, _ = doctest.testmod(module, extraglobs=fixtures)
    assert not failed, capsys.readouterr().out


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_explained(package):
    module = importlib.import_module("speechbrain_triton" + package)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
            assert not thing.__doc__.startswith(f"{name}("), name
