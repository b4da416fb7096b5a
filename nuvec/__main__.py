"""`python -m nuvec`: what a bug report should say of the installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator

import numpy as np

from nuvec.core.config import config

# The transports, modules of nuvec.distributed.transports, and what each needs.
_TRANSPORTS: dict[str, str | None] = {
    "local": None,
    "mesh": None,
    "ring": None,
    "shm": None,
    "mpi": "mpi4py",
    "gloo": "torch",
}
_THREAD_VARIABLES = (
    "NUVEC_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _blas() -> str:
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})  # type: ignore[union-attr]
    name, version = blas.get("name", "unknown"), blas.get("version", "")
    settings = blas.get("openblas configuration", "")
    return " ".join(part for part in (name, version, f"({settings})" if settings else "") if part)


def _available(package: str | None) -> str:
    if package is None:
        return "available"
    if importlib.util.find_spec(package) is None:
        return f"not available: needs {package}"
    return f"available ({package} {_version(package)})"


def report() -> Iterator[tuple[str, str]]:
    """The lines of the report: what, and its value."""
    for package in ("nuvec", "numpy", "ml_dtypes", "opt_einsum"):
        yield package, _version(package)
    yield "python", f"{platform.python_version()} ({sys.platform}, {platform.machine()})"
    yield "BLAS", _blas()
    yield "cores", str(os.cpu_count())
    yield "threads", str(config.threads or "one a core")
    for variable in _THREAD_VARIABLES:
        if variable in os.environ:
            yield variable, os.environ[variable]
    for transport, needs in _TRANSPORTS.items():
        if importlib.util.find_spec(f"nuvec.distributed.transports.{transport}") is not None:
            yield f"transport {transport}", _available(needs)


def main() -> None:
    lines = list(report())
    width = max(len(what) for what, _ in lines)
    for what, value in lines:
        print(f"{what:<{width}}  {value}")


if __name__ == "__main__":
    main()
