"""Where sources are, and which headers decide their digest."""

import pytest

from gpulab.errors import BuildError
from gpulab.runtime import sources


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A raw_kernels/ of our own: op/k.cu -> common/a.cuh -> common/b.cuh."""
    for name, text in {
        "common/a.cuh": '#pragma once\n#include "common/b.cuh"\n',
        "common/b.cuh": "#pragma once\n#define VALUE 1\n",
        "common/unused.cuh": "#define OTHER 1\n",
        "op/k.cu": '#include <cuda_fp16.h>\n#include "common/a.cuh"\n'
        'extern "C" __global__ void k(int* x) { *x = VALUE; }\n',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sources, "root", lambda: tmp_path)
    return tmp_path


def names(tree, text):
    found = sources.closure(text, tree / "op" / "k.cu")
    return [str(path.relative_to(tree)) for path in found]


def test_closure_follows_headers_of_headers_and_no_others(tree):
    assert names(tree, (tree / "op/k.cu").read_text()) == ["common/a.cuh", "common/b.cuh"]


@pytest.mark.parametrize(
    "line",
    [
        '#include "common/b.cuh"',
        "#include <common/b.cuh>",
        '  #  include   "common/b.cuh"  // why',
        '#include \\\n "common/b.cuh"',
        '#if 0\n#include "common/b.cuh"\n#endif',
        '/* text */ \n#include "../common/b.cuh"',
    ],
)
def test_every_spelling_of_an_include_is_seen(tree, line):
    assert names(tree, f"{line}\nint x;\n") == ["common/b.cuh"]


def test_include_cycles_end(tree):
    (tree / "common/b.cuh").write_text('#include "common/a.cuh"\n')
    assert names(tree, '#include "common/a.cuh"') == ["common/a.cuh", "common/b.cuh"]


def test_an_include_through_a_macro_is_refused(tree):
    with pytest.raises(BuildError, match="through a macro"):
        names(tree, "#include HEADER\n")


def digest(tree):
    path = tree / "op/k.cu"
    return sources.digest(path.read_text(), path)


def test_digest_reacts_to_the_source_and_to_each_header(tree):
    seen = {digest(tree)}
    for name in ("op/k.cu", "common/a.cuh", "common/b.cuh"):
        path = tree / name
        path.write_text(path.read_text() + "// edited\n")
        seen.add(digest(tree))
    assert len(seen) == 4


def test_digest_ignores_headers_that_are_not_included(tree):
    before = digest(tree)
    (tree / "common/unused.cuh").write_text("#define OTHER 2\n")
    assert digest(tree) == before


def test_digest_sees_a_header_that_appears(tree):
    """cuda_fp16.h is NVIDIA's until a file of that name is put into raw_kernels/."""
    before = digest(tree)
    (tree / "cuda_fp16.h").write_text("#define SHADOW 1\n")
    assert digest(tree) != before


def test_moving_text_between_files_changes_the_digest(tree):
    """Lengths are hashed too: 'ab' + 'c' is not 'a' + 'bc'."""
    before = digest(tree)
    a, b = tree / "common/a.cuh", tree / "common/b.cuh"
    b.write_text(a.read_text()[-1:] + b.read_text())
    a.write_text(a.read_text()[:-1])
    assert digest(tree) != before


def test_path_and_text_do_not_run_into_each_other(tree):
    assert sources.digest("A", tree / "x") != sources.digest("", tree / "xA")


def test_missing_and_unreadable_sources(tree):
    with pytest.raises(BuildError, match="no such source"):
        sources.resolve("op/nothing.cu")
    (tree / "op/latin.cu").write_bytes(b"// caf\xe9\n")
    with pytest.raises(BuildError, match="not UTF-8"):
        sources.read(tree / "op/latin.cu")
    (tree / "op/nul.cu").write_bytes(b"int x;\0int y;\n")
    with pytest.raises(BuildError, match="NUL"):
        sources.read(tree / "op/nul.cu")


def test_raw_kernels_are_found_beside_the_package():
    assert (sources.root() / "matmul").is_dir()
    assert sources.resolve(sources.root() / "matmul" / "simt.cu").is_file()
