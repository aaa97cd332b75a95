"""Write what a bare machine with a GPU needs to run `benchmarks.gpu`, in pieces that are carried.

    python -m benchmarks.gpu.bundle --into build/gpu-bundle

The machine has Python 3.12, torch 2.11 for CUDA 13 and numpy, and no network. The bundle holds
TorchRec, FBGEMM, all else that is imported, and this repository's files; `join.py` in it puts them
together there. FBGEMM's libraries have their kernels for several kinds of GPU; those for others
than `--arch` are overwritten by zeros, which makes 465 MB 85. `--arch all` leaves them as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
FOLDERS = ("src", "benchmarks", "tests/gpu", "tests/fae", "tests/lone_rank.py")

_CONTAINER, _CONTAINER_HEAD = struct.pack("<I", 0xBA55ED50), struct.Struct("<IHHQ")
_ENTRY_HEAD, _ARCH_AT = struct.Struct("<HHIQ"), 28


def download(names: Sequence[str], folder: Path) -> list[Path]:
    """The wheels of some packages, for Python 3.12; those that are there are not fetched again."""
    platforms = [part for p in PLATFORMS for part in ("--platform", f"{p}_x86_64")]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        + ["--python-version", "3.12", "--implementation", "cp", *platforms]
        + ["--dest", str(folder), *names],
        check=True,
    )
    return sorted(folder.glob("*.whl"))


def keep_kernels(library: bytearray, arch: int) -> int:
    """Overwrite by zeros the kernels in a library that are for other GPUs.

    CUDA's fat binaries are containers: a head (magic, version, its size, size of the rest), then
    entries, each with a head (kind, version, its size, size of the code, ..., compute capability).
    The heads stay, so that the driver finds the entry that it wants where it was.

    Args:
        library: as in its file; changed in place.
        arch: compute capability to keep: 90 for Hopper.

    Returns:
        Bytes that were overwritten.
    """
    erased = at = 0
    while (at := library.find(_CONTAINER, at)) >= 0:
        _, version, head, size = _CONTAINER_HEAD.unpack_from(library, at)
        if (version, head) != (1, _CONTAINER_HEAD.size) or at + head + size > len(library):
            at += len(_CONTAINER)
            continue
        entry, at = at + head, at + head + size
        while entry < at:
            _, _, entry_head, code = _ENTRY_HEAD.unpack_from(library, entry)
            if struct.unpack_from("<I", library, entry + _ARCH_AT)[0] != arch:
                library[entry + entry_head : entry + entry_head + code] = bytes(code)
                erased += code
            entry += entry_head + code
    return erased


def unpack(wheels: Sequence[Path], site: Path, arch: int | None) -> None:
    """Lay wheels out as an installer would, and keep one kind of kernels."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for path in sorted(site.glob("fbgemm_gpu/*.so")) if arch else ():
        library = bytearray(path.read_bytes())
        erased = keep_kernels(library, arch or 0)
        path.write_bytes(library)
        print(f"{path.name}: {erased / MIB:.0f} of {len(library) / MIB:.0f} MiB erased", flush=True)


def sources() -> list[Path]:
    """Files of this repository that are needed there, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def cut(archive: Path, into: Path, piece_bytes: int) -> dict[str, str]:
    """Cut a file into pieces: name -> SHA-256."""
    digests = {}
    with archive.open("rb") as file:
        for number in range(1, 100):
            part = file.read(piece_bytes)
            if not part:
                break
            name = f"piece-{number:02}"
            (into / name).write_bytes(part)
            digests[name] = hashlib.sha256(part).hexdigest()
    return digests


def write(
    into: Path, wheels: Sequence[Path], files: Sequence[Path], arch: int | None, piece_bytes: int
) -> list[str]:
    """Write the bundle: names of its pieces."""
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob("piece-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=into) as folder:
        site, archive = Path(folder, "site"), Path(folder, "all.tar.xz")
        unpack(wheels, site, arch)
        with lzma.open(archive, "wb", preset=6) as packed, tarfile.open(None, "w|", packed) as tar:
            tar.add(site, "site")
            for path in files:
                tar.add(path, f"trainobs/{path.relative_to(ROOT)}")
        pieces = cut(archive, into, piece_bytes)
    manifest = {"pieces": pieces, "wheels": [wheel.name for wheel in wheels], "arch": arch}
    (into / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    shutil.copy(Path(__file__).with_name("join.py"), into)
    return list(pieces)


def main() -> None:
    """Fetch, cut, and say how large it became."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT / "build/gpu-bundle")
    parser.add_argument("--wheels", type=Path, default=ROOT / "build/gpu-wheels")
    parser.add_argument(
        "--arch", default="90", help="compute capability, or all; 90 for H100, H200"
    )
    parser.add_argument("--piece-mib", type=int, default=48)
    parser.add_argument("--without", action="append", default=[], help="a package that is there")
    arguments = parser.parse_args()
    lines = [x for x in REQUIREMENTS.read_text().splitlines() if not x.startswith("#")]
    names = [line for line in lines if line.split("==")[0] not in arguments.without]
    wheels = download(names, arguments.wheels)
    arch = None if arguments.arch == "all" else int(arguments.arch)
    pieces = write(arguments.into, wheels, sources(), arch, arguments.piece_mib * MIB)
    for name in pieces:
        print(f"{arguments.into / name}: {(arguments.into / name).stat().st_size / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
