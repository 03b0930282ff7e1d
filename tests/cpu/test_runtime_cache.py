"""The compile cache: what its keys react to, whole entries, races, damage, no place to write."""

import json
import logging
import multiprocessing
import subprocess
import sys

import pytest

from gpulab.errors import BuildError
from gpulab.runtime import cache, nvrtc, sources, toolkit
from gpulab.runtime.cache import Store, compile_source

KERNEL = """#include "common/v.cuh"
extern "C" __global__ void k(float* x) { *x = x[1] * VALUE + x[2]; }
"""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    root = tmp_path / "raw_kernels"
    (root / "common").mkdir(parents=True)
    (root / "k.cu").write_text(KERNEL)
    (root / "common/v.cuh").write_text("#define VALUE 3.0f\n")
    monkeypatch.setattr(sources, "root", lambda: root)
    return root


def test_the_second_compilation_is_a_hit_and_equal(tree, store):
    first = compile_source("k.cu", "k", (8, 9), store=store)
    second = compile_source("k.cu", "k", (8, 9), store=store)
    assert (first.hit, second.hit) == (False, True)
    assert second.compiled == first.compiled
    assert second.cubin_path.read_bytes() == first.compiled.cubin


def test_an_edited_header_is_compiled_anew(tree, store):
    before = compile_source("k.cu", "k", (8, 9), store=store)
    (tree / "common/v.cuh").write_text("#define VALUE 5.0f\n")
    after = compile_source("k.cu", "k", (8, 9), store=store)
    assert not after.hit
    assert "0f40A00000" in after.compiled.ptx  # 5.0f
    assert "0f40400000" in before.compiled.ptx  # 3.0f
    (tree / "common/v.cuh").write_text("#define VALUE 3.0f\n")
    assert compile_source("k.cu", "k", (8, 9), store=store).hit


def test_options_architecture_and_entry_are_part_of_the_key(tree, store):
    (tree / "k.cu").write_text(KERNEL + KERNEL.splitlines()[1].replace("k(", "other("))
    variants = [
        {"entry": "k", "capability": (8, 9)},
        {"entry": "k", "capability": (8, 0)},
        {"entry": "k", "capability": (9, 0)},
        {"entry": "k", "capability": (9, 0), "feature_target": True},
        {"entry": "k", "capability": (8, 9), "contract": True},
        {"entry": "k", "capability": (8, 9), "defines": ["EXTRA=1"]},
        {"entry": "other", "capability": (8, 9)},
    ]
    assert [compile_source("k.cu", store=store, **v).hit for v in variants] == [False] * 7
    assert [compile_source("k.cu", store=store, **v).hit for v in variants] == [True] * 7


def test_compiler_version_and_patch_release_are_part_of_the_key(tree):
    path = tree / "k.cu"

    def key(kit):
        return cache.source_key(path.read_text(), path, "k", ["-O"], kit)

    kit = toolkit.find()
    other = toolkit.Toolkit(kit.nvrtc, (13, 4), kit.headers, kit.headers_version)
    assert key(kit) == key(kit)
    assert key(kit) != key(other)
    patched = tree / "libnvrtc.so.13"
    patched.write_bytes(b"x" * 10)
    one = toolkit.Toolkit(patched, (13, 5), (), None)
    before = key(one)
    patched.write_bytes(b"x" * 11)
    assert key(one) != before


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "meta", "foreign"])
def test_a_damaged_entry_is_built_again(tree, store, damage, caplog):
    first = compile_source("k.cu", "k", (8, 9), store=store)
    folder = first.cubin_path.parent
    if damage == "truncate":
        (folder / "kernel.cubin").write_bytes(first.compiled.cubin[:100])
    elif damage == "flip":
        image = bytearray(first.compiled.cubin)
        image[200] ^= 1
        (folder / "kernel.cubin").write_bytes(image)
    elif damage == "remove":
        (folder / "kernel.ptx").unlink()
    elif damage == "meta":
        (folder / "meta.json").write_text("{")
    else:  # an entry of another key, copied here whole
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, "key": "0" * 64}))
    with caplog.at_level(logging.WARNING, "gpulab.cache"):
        again = compile_source("k.cu", "k", (8, 9), store=store)
    assert not again.hit
    assert "damaged" in caplog.text
    assert again.compiled.ptx == first.compiled.ptx
    assert compile_source("k.cu", "k", (8, 9), store=store).hit
    assert leftovers(store) == []


def leftovers(store):
    return [p.name for p in store.folder.rglob(".*")]


def test_a_failed_write_publishes_nothing(store):
    with pytest.raises(TypeError):
        store.put("ab" + "0" * 62, {"good": b"1", "bad": "text is no bytes"}, {})
    assert store.get("ab" + "0" * 62) is None
    assert leftovers(store) == []


def test_the_second_to_publish_keeps_the_first(store):
    name = "cd" + "1" * 62
    store.put(name, {"f": b"first"}, {"n": 1})
    store.put(name, {"f": b"second"}, {"n": 2})
    assert store.get(name) == ({"f": b"first"}, {"n": 1})
    assert leftovers(store) == []


def _put_many(folder, number):
    store = Store(folder)
    for i in range(40):
        name = f"{i:02x}" + "2" * 62
        content = bytes([number]) * 50_000
        store.put(name, {"f": content}, {})
        found = store.get(name)
        # Whole, and of one writer: never a mixture.
        assert found is not None
        assert len(set(found[0]["f"])) == 1
        assert len(found[0]["f"]) == 50_000


def test_processes_that_race_see_whole_entries(store):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_put_many, args=(store.folder, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert leftovers(store) == []


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    for name in ("GPULAB_CACHE", "GPULAB_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.configured_folder() == tmp_path / ".cache" / "gpulab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.configured_folder() == tmp_path / "xdg" / "gpulab"
    monkeypatch.setenv("GPULAB_CACHE_DIR", str(tmp_path / "named"))
    assert cache.configured_folder() == tmp_path / "named"
    monkeypatch.setenv("GPULAB_CACHE", "off")
    assert cache.configured_folder() is None


@pytest.mark.parametrize("named", [None, "~nobody-of-that-name/kernels"])
def test_without_a_home_it_is_said_and_done_without(monkeypatch, caplog, tmp_path, named):
    """As in a container whose user has no entry and no HOME."""
    monkeypatch.chdir(tmp_path)
    for name in ("GPULAB_CACHE", "GPULAB_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.os.path, "expanduser", lambda path: path)
    if named is not None:
        monkeypatch.setenv("GPULAB_CACHE_DIR", named)
    with caplog.at_level(logging.WARNING, "gpulab.cache"):
        store = cache.default_store()
    assert f"{named or '~/.cache/gpulab'}: that home folder is not known" in caplog.text
    store.put("ab" + "4" * 62, {"f": b"1"}, {})
    assert store.get("ab" + "4" * 62) is not None
    assert list(tmp_path.iterdir()) == []


def test_off_leaves_nothing_behind(tmp_path):
    """In a process of its own: the temporary folder goes when the process ends."""
    code = (
        "from gpulab.runtime import cache\n"
        "s = cache.default_store()\n"
        "s.put('ab' + '0' * 62, {'f': b'1'}, {})\n"
        "assert s.get('ab' + '0' * 62) is not None\n"
        "print(s.folder)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={
            "GPULAB_CACHE": "off",
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(sources.root().parent),
        },
    )
    assert list(tmp_path.iterdir()) == []
    folder = nvrtc.Path(done.stdout.strip())
    assert folder.name.startswith("gpulab-cache-")
    assert not folder.exists()


def test_a_full_disk_is_said_and_the_code_is_kept_for_the_run(tree, store, monkeypatch, caplog):
    real = Store.put

    def put(self, *entry):
        if self.folder == store.folder:
            raise OSError(28, "No space left on device")
        real(self, *entry)

    monkeypatch.setattr(Store, "put", put)
    with caplog.at_level(logging.WARNING, "gpulab.cache"):
        made = compile_source("k.cu", "k", (8, 9), store=store)
    assert "No space left" in caplog.text
    assert made.cubin_path.read_bytes() == made.compiled.cubin
    monkeypatch.setattr(Store, "put", lambda *a: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(BuildError, match="cannot be written"):
        compile_source("k.cu", "k", (8, 9), store=store)


def test_a_folder_that_cannot_be_written_is_said_and_done_without(monkeypatch, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("a file, no folder")
    monkeypatch.setenv("GPULAB_CACHE_DIR", str(blocked))
    monkeypatch.delenv("GPULAB_CACHE", raising=False)
    with caplog.at_level(logging.WARNING, "gpulab.cache"):
        store = cache.default_store()
    assert str(blocked) in caplog.text
    store.put("ef" + "3" * 62, {"f": b"1"}, {})
    assert store.get("ef" + "3" * 62) is not None
    assert cache.writable(blocked / "below") is not None
    assert cache.writable(tmp_path / "fine") is None
