"""Compiled kernels on disk, keyed by everything that decides their bytes.

An entry is a folder ``<cache>/<2 hex>/<62 hex>/`` whose ``meta.json`` holds the SHA-256 of every
other file. It is written under another name and published by one rename, so a reader sees a
whole entry or none; of two processes that build the same entry the second to publish takes the
first one's. An entry that does not match its digests is set aside and built again.

The folder is ``GPULAB_CACHE_DIR``, else ``$XDG_CACHE_HOME/gpulab``, else ``~/.cache/gpulab``.
``GPULAB_CACHE=off`` keeps entries in a temporary folder for the life of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpulab.errors import BuildError
from gpulab.runtime import nvrtc, sources, toolkit
from gpulab.runtime.nvrtc import Compiled
from gpulab.runtime.toolkit import Capability, Toolkit

SCHEMA = 1
_LOG = logging.getLogger("gpulab.cache")


def key(facts: Mapping[str, Any]) -> str:
    """The digest of a set of JSON-able facts; any difference in any of them changes it."""
    text = json.dumps({"schema": SCHEMA, **facts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """A folder of entries; see the module docstring for its layout and promises."""

    folder: Path

    def path(self, name: str) -> Path:
        """The folder of the entry ``name`` (a digest), there or not."""
        return self.folder / name[:2] / name[2:]

    def get(self, name: str) -> tuple[dict[str, bytes], dict[str, Any]] | None:
        """The files and the notes of an entry; None if it is not there or not whole."""
        folder = self.path(name)
        try:
            meta = json.loads((folder / "meta.json").read_bytes())
            files = {n: (folder / n).read_bytes() for n in meta["files"]}
            whole = all(_sha(files[n]) == digest for n, digest in meta["files"].items())
            if whole and meta["key"] == name:
                return files, meta["notes"]
        except FileNotFoundError:
            if not folder.exists():
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        _LOG.warning("cache entry %s is damaged: building it again", folder)
        self._set_aside(folder)
        return None

    def put(self, name: str, files: Mapping[str, bytes], notes: Mapping[str, Any]) -> None:
        """Publish an entry; does nothing if another process has published it meanwhile."""
        final = self.path(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
        try:
            for file, content in files.items():
                (building / file).write_bytes(content)
            meta = {
                "key": name,
                "files": {file: _sha(content) for file, content in files.items()},
                "notes": dict(notes),
            }
            (building / "meta.json").write_text(json.dumps(meta))
            try:
                building.rename(final)
            except OSError:
                if not final.is_dir():  # not lost to another process: a real failure
                    raise
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _set_aside(self, folder: Path) -> None:
        # A rename first: removal in place could be seen half done by another process.
        with contextlib.suppress(OSError):
            aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
            folder.rename(aside / "entry")
            shutil.rmtree(aside, ignore_errors=True)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def configured_folder() -> Path | None:
    """Where entries are to be kept, by the environment; None for ``GPULAB_CACHE=off``.

    A ``~`` that stands for nobody's home stays as it is written.
    """
    if os.environ.get("GPULAB_CACHE", "").lower() in ("off", "0", "no"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    named = os.environ.get("GPULAB_CACHE_DIR") or f"{base}/gpulab"
    found = os.path.expanduser(named)
    return Path(found) if found.startswith("~") else Path(found).absolute()


def writable(folder: Path) -> str | None:
    """None if entries can be written below ``folder`` (made if need be), else the reason."""
    if str(folder).startswith("~"):
        return "that home folder is not known"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


@lru_cache(maxsize=1)
def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gpulab-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@lru_cache(maxsize=8)
def _store(folder: Path | None) -> Store:
    if folder is not None:
        reason = writable(folder)
        if reason is None:
            return Store(folder)
        _LOG.warning("cache folder %s: %s; compiling for this run only", folder, reason)
    return Store(_temporary())


def default_store() -> Store:
    """The store that the environment asks for; temporary if its folder cannot be written."""
    return _store(configured_folder())


def publish(store: Store, name: str, files: Mapping[str, bytes], notes: Mapping[str, Any]) -> Path:
    """Put an entry into a store, or for this run into a temporary one if that fails (disk full).

    Returns:
        The folder the files are in.

    Raises:
        BuildError: no folder can be written at all.
    """
    try:
        store.put(name, files, notes)
        return store.path(name)
    except OSError as error:
        _LOG.warning("cache folder %s: %s; kept for this run only", store.folder, error.strerror)
    try:
        spare = Store(_temporary())
        spare.put(name, files, notes)
    except OSError as error:
        raise BuildError(
            f"compiled code cannot be written: {error}",
            fix="free some disk space, or export GPULAB_CACHE_DIR=/a/folder/you/can/write",
        ) from None
    return spare.path(name)


@dataclass(frozen=True)
class Stored:
    """A compilation and the file its cubin is in.

    Args:
        compiled: PTX, cubin, lowered name and log.
        cubin_path: for ``cuModuleLoad``.
        hit: it was in the cache.
    """

    compiled: Compiled
    cubin_path: Path
    hit: bool


def source_key(text: str, path: Path, entry: str, options: Sequence[str], kit: Toolkit) -> str:
    """The key of one compilation: source, headers of ours, options (architecture), compiler."""
    return key(
        {
            "sources": sources.digest(text, path),
            "entry": entry,
            "options": list(options),
            "nvrtc": list(kit.version),
            "installation": kit.stamp,
        }
    )


def _restored(
    files: Mapping[str, bytes], notes: Mapping[str, Any], entry: str, target: str, kit: Toolkit
) -> Compiled:
    """The compilation that an entry of the cache holds."""
    return Compiled(
        entry,
        notes["lowered"],
        target,
        files["kernel.ptx"].decode(),
        files["kernel.cubin"],
        notes["log"],
        kit.version,
    )


def compile_source(
    source: str | Path,
    entry: str,
    capability: Capability,
    *,
    defines: Sequence[str] = (),
    feature_target: bool = False,
    contract: bool = False,
    kit: Toolkit | None = None,
    store: Store | None = None,
) -> Stored:
    """``nvrtc.compile_cubin`` through the cache.

    Args:
        source: path relative to ``raw_kernels/``, or absolute.
        entry: name expression.
        capability: (8, 9).
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for ``sm_90a`` rather than ``sm_90``.
        contract: let ``a * b + c`` fuse.
        kit: which NVRTC; ``toolkit.default()`` unless told.
        store: where entries are kept; the user's cache by default.

    Raises:
        BuildError: the compiler refuses it.
        DeviceMissingError: NVRTC is not installed.
    """
    kit, store = kit or toolkit.default(), store or default_store()
    path = sources.resolve(source)
    text = sources.read(path)
    target = nvrtc.target_name(kit, capability, feature_target)
    options = nvrtc.options(kit, target, defines=defines, contract=contract)
    name = source_key(text, path, entry, options, kit)
    if (found := store.get(name)) is not None:
        compiled = _restored(*found, entry, target, kit)
        return Stored(compiled, store.path(name) / "kernel.cubin", hit=True)
    compiled = nvrtc.compile_text(
        text,
        str(path),
        entry,
        capability,
        defines=defines,
        feature_target=feature_target,
        contract=contract,
        kit=kit,
    )
    folder = publish(
        store,
        name,
        {"kernel.ptx": compiled.ptx.encode(), "kernel.cubin": compiled.cubin or b""},
        {"lowered": compiled.lowered, "log": compiled.log, "source": str(path), "entry": entry},
    )
    return Stored(compiled, folder / "kernel.cubin", hit=False)
