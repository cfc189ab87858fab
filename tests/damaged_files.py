"""What a file may be instead of what it should be."""

import os

import pytest


def put(path, content):
    """Write bytes in the place of a file, or let a function make it."""
    path.unlink(missing_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)


def directory(path):
    path.mkdir()


def pipe(path):
    os.mkfifo(path)


def loop(path):
    path.symlink_to(path.name)


def endless(path):
    path.symlink_to("/dev/zero")


def huge(path):
    path.touch()
    os.truncate(path, 200_000_000)


def locked(path):
    path.touch(mode=0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
