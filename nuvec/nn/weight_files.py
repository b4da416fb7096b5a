"""Named arrays in files: npz, and with the extra `io` safetensors, as MLX reads and writes them.

Nothing is ever pickled or unpickled. A file is written beside its place and moved there when it
is whole, so that an interrupted save leaves the old one. bfloat16, which the npz format does not
know, is stored as its bits under NumPy's dtype "V2", as MLX does.
"""

from __future__ import annotations

import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from nuvec.core import dtypes
from nuvec.core.array import Array
from nuvec.core.errors import ArgumentError

__all__ = ["read", "write"]

PathLike = str | os.PathLike[str]
Values = dict[str, np.ndarray]

_BITS_OF_BFLOAT16 = np.dtype("V2")

# The dtypes of safetensors that are nuvec's; it has float8 and smaller ones besides.
_SAFETENSORS = frozenset({
    "BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64",
    "BF16", "F16", "F32", "F64", "C64",
})  # fmt: skip


def read(file: PathLike) -> Values:
    """The arrays in a file, by name."""
    return _format(file).read(Path(file))


def write(file: PathLike, named: Mapping[str, Array]) -> None:
    """Write arrays to a file, by name; other processes see the old file, or the whole new one."""
    form = _format(file)
    # safetensors takes the bytes as they lie, so every array in C order.
    values = {name: np.asarray(array, order="C") for name, array in named.items()}
    form.check(values)
    place = Path(os.path.realpath(file))  # a link stays one
    if not place.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(place.parent)!r} to save weights in")
    beside = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        with open(beside, "xb") as made:
            mode = os.fstat(made.fileno()).st_mode
        form.write(beside, values)
        os.chmod(beside, stat.S_IMODE(mode))  # safetensors makes a file of its own, for one user
        with open(beside, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


class _Format(Protocol):
    def check(self, values: Values) -> None:
        """Raise before a file is begun that could not be written."""

    def write(self, path: Path, values: Values) -> None: ...

    def read(self, path: Path) -> Values: ...


class _Npz:
    """A zip archive of npy files: NumPy's own format."""

    def check(self, values: Values) -> None:
        """Every dtype of nuvec's can be stored."""

    def write(self, path: Path, values: Values) -> None:
        # Not np.savez, whose own arguments are names that an array then cannot have.
        with zipfile.ZipFile(path, "w") as archive:
            for name, value in values.items():
                if value.dtype == dtypes.bfloat16:
                    value = value.view(_BITS_OF_BFLOAT16)
                # The member without a date, so that the same weights make the same bytes.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, value, allow_pickle=False)

    def read(self, path: Path) -> Values:
        if not zipfile.is_zipfile(path):
            if not path.exists():
                raise FileNotFoundError(f"there is no file {str(path)!r}")
            raise ArgumentError(f"{str(path)!r} is no npz file: it is not a whole zip archive.")
        values = {}
        name = "the list of arrays"
        try:
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    values[name] = self._value(archive[name])
        except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ArgumentError(f"{str(path)!r}: {name} cannot be read: {error}") from error
        return values

    def _value(self, value: Any) -> np.ndarray:
        if not isinstance(value, np.ndarray):
            raise ValueError("it is no array in NumPy's format")
        return value.view(dtypes.bfloat16) if value.dtype == _BITS_OF_BFLOAT16 else value


class _Safetensors:
    """Hugging Face's format (https://huggingface.co/docs/safetensors)."""

    def check(self, values: Values) -> None:
        refused = [name for name, value in values.items() if value.dtype == dtypes.complex128]
        if refused:
            raise ArgumentError(
                f"safetensors has no complex128, which {', '.join(refused)} would need: save as "
                ".npz, or convert with .astype(nv.complex64)."
            )
        self._library()

    def write(self, path: Path, values: Values) -> None:
        self._library().numpy.save_file(values, path)

    def read(self, path: Path) -> Values:
        library = self._library()
        try:
            with library.safe_open(path, framework="np") as archive:
                return {name: self._value(archive, name) for name in archive.keys()}  # noqa: SIM118
        except (ValueError, library.SafetensorError) as error:
            raise ArgumentError(f"{str(path)!r}: cannot be read: {error}") from error

    def _value(self, archive: Any, name: str) -> np.ndarray:
        dtype = archive.get_slice(name).get_dtype()
        if dtype not in _SAFETENSORS:
            raise ValueError(f"{name} is of dtype {dtype}, which nuvec does not have")
        return archive.get_tensor(name)

    def _library(self) -> ModuleType:
        try:
            import safetensors.numpy  # an extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "safetensors files need the package safetensors: pip install 'nuvec[io]', or use "
                "a file that ends in .npz"
            ) from error
        return safetensors


_FORMATS: dict[str, _Format] = {".npz": _Npz(), ".safetensors": _Safetensors()}


def _format(file: PathLike) -> _Format:
    suffix = Path(file).suffix
    if suffix not in _FORMATS:
        raise ArgumentError(
            f"{os.fspath(file)!r}: weights are kept in files that end in .npz or .safetensors."
        )
    return _FORMATS[suffix]
