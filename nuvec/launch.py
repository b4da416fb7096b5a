"""``python -m nuvec.launch -n 2 script.py``: see `nuvec.distributed.launch`."""

import sys

from nuvec.distributed.launch import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
