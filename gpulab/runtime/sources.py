"""Where raw_kernels/ is, which of our headers a source includes, and the digest of them all."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from gpulab.errors import BuildError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(\S+))', re.MULTILINE)
_SPLICE = re.compile(r"\\[ \t]*\r?\n")


@lru_cache(maxsize=1)
def root() -> Path:
    """The folder of the device code: ``gpulab/raw_kernels`` in a wheel, else the checkout's.

    In an editable install a stale snapshot may lie in site-packages; the search is relative to
    this file, so the checkout that is imported is the checkout whose sources are compiled.

    Raises:
        BuildError: neither is there (a broken installation).
    """
    package = Path(__file__).resolve().parent.parent
    for place in (package / "raw_kernels", package.parent / "raw_kernels"):
        if place.is_dir():
            return place
    raise BuildError(
        f"raw_kernels/ is neither in {package} nor beside it",
        fix="pip install --force-reinstall gpulab",
    )


def resolve(source: str | Path) -> Path:
    """The absolute path of a source given relative to ``raw_kernels/`` or absolutely.

    Raises:
        BuildError: there is no such file.
    """
    path = Path(source)
    path = path if path.is_absolute() else root() / path
    if not path.is_file():
        raise BuildError(f"no such source: {path}", file=str(path))
    return path


def read(path: Path) -> str:
    """The text of a source.

    Raises:
        BuildError: it is not UTF-8, or it contains a NUL byte (C strings end there).
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BuildError(f"{path} is not UTF-8 text: {error.reason}", file=str(path)) from None
    except OSError as error:
        raise BuildError(f"cannot read {path}: {error.strerror}", file=str(path)) from None
    if "\0" in text:
        raise BuildError(f"{path} contains a NUL byte", file=str(path))
    return text


def closure(text: str, path: Path) -> tuple[Path, ...]:
    """Every file of ours that ``text`` (the content of ``path``) can include, sorted.

    A superset: conditional includes and includes in comments count, which costs at most a
    needless rebuild. Files outside ``raw_kernels/`` and the source's folder (the CUDA headers)
    are not listed; the compiler's version stands for them.

    Raises:
        BuildError: an include names its file through a macro, so it cannot be followed.
    """
    found: set[Path] = set()
    waiting = [(text, path)]
    while waiting:
        content, where = waiting.pop()
        for match in _INCLUDE.finditer(_SPLICE.sub(" ", content)):
            quoted, angled, computed = match.groups()
            if computed is not None:
                raise BuildError(
                    f"{where}: #include {computed} names its file through a macro",
                    fix='write the file name: #include "common/x.cuh"',
                    file=str(where),
                )
            for folder in (where.parent, root()):
                target = (folder / (quoted or angled)).resolve()
                if target.is_file() and target not in found:
                    found.add(target)
                    waiting.append((read(target), target))
    found.discard(path.resolve())
    return tuple(sorted(found))


def digest(text: str, path: Path) -> str:
    """SHA-256 over a source's text and path and those of every header of ours it includes.

    The paths belong to it because they are compiled into the line table and ``__FILE__``.
    """
    total = hashlib.sha256()
    for name, content in ((path, text), *((p, read(p)) for p in closure(text, path))):
        for part in (str(name).encode(), content.encode()):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return total.hexdigest()
