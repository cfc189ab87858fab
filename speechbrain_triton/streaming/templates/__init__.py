"""The files of an exported folder, with $names to be filled in."""

from pathlib import Path
from string import Template


def read_template(name: str) -> Template:
    """Read a template of this folder.

    Arguments
    ---------
    name : str
        Its file name.

    Returns
    -------
    string.Template

    Example
    -------
    >>> read_template("labels.yaml").substitute(separator=" ")[:10]
    'tokenizer:'
    """
    path = Path(__file__).with_name(name)
    return Template(path.read_text(encoding="utf-8"))
