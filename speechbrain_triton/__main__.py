"""Runs ``python -m speechbrain_triton``."""

import sys

from speechbrain_triton.cli import main

sys.exit(main())
