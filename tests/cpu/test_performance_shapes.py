"""Row shapes that were tried: docs/performance.md shows the best and compares changed sources."""

import sys
from pathlib import Path

from performance_records import shape, table_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import performance_row_shapes


def test_the_best_tried_shapes_are_shown():
    few = [shape(0.97, 4096, 4), shape(0.6, 4096, 2), shape(0.93, 131072, 1)]
    few.append(shape(0.96, 32768, 2, op="rmsnorm"))
    text = performance_row_shapes.row_shapes(few)
    assert table_of(text, "softmax online bf16") == [
        ["softmax online bf16", "4096", "kept, threads 512, packs 4, blocks 4", "2",
         "0.970 copy", "0.600", "4", "64", "4"],
        ["softmax online bf16", "131072", "kept, threads 512, packs 4, blocks 1", "1",
         "0.930 copy", "0.930", "1", "64", "4"],
    ]  # fmt: skip
    assert "two rows or more: 0.96 to 0.97, median 0.965 (2); one: 0.93, median 0.930 (1)." in text
    # 65536 registers of 4 bytes and 228 KiB of shared memory
    assert "longest row takes 256 KiB; registers and shared memory of an SM hold 484." in text
    assert "Some shape comes to 0.92 everywhere." in text
    text = performance_row_shapes.row_shapes([*few, shape(0.91, 262144, 1, 2)])
    assert "less: 0.91, median 0.910 (1)" in text
    assert "no shape comes to 0.92: softmax online at 262144 (0.910)." in text
    assert "In arrays of" not in text
    assert "cluster's barrier" not in text


def test_changed_sources_are_compared_in_the_same_shape():
    timed = {"yardstick_gb_per_s": 3800.0}
    text = performance_row_shapes.row_shapes([
        shape(0.8, 4096, 4, **timed), shape(0.5, 4096, 2),
        shape(0.95, 4096, 4, array_bytes=512 << 20, **timed),
        shape(0.92, 4096, 4, changes=["a"], **timed),
        shape(0.46, 4096, 4, changes=["a", "b"], **timed),
        shape(0.4, 4096, 2, changes=["a"], **timed),  # without it only elsewhere
        shape(0.7, 8192, 4, changes=["b"], **timed),  # nothing to compare it with
    ])  # fmt: skip
    (cells, _) = table_of(text, "softmax online bf16")
    assert cells[2:5] == ["kept, threads 512, packs 4, blocks 4; a", "5", "0.920 copy"]
    assert cells[-1] == "0.950"
    assert (
        "In arrays of 512 MiB the best share is higher for 1 of 1 rows, at the median by 0.030"
        in text
    )
    assert "- a: higher in 1 of 1; 1.15 times as much, median 1.150\n" in text
    assert "- b: higher in 0 of 1; 0.5 times as much, median 0.500\n" in text


def test_a_change_is_compared_with_the_nearest_in_the_record():
    timed = {"yardstick_gb_per_s": 3800.0}
    text = performance_row_shapes.row_shapes([
        shape(0.8, 4096, 4, **timed),
        shape(0.4, 4096, 4, changes=["a"], **timed),
        shape(0.92, 8192, 4, **timed), shape(0.92, 8192, 4, **timed),
        shape(0.4, 4096, 4, **timed),  # a later run, of other sources
        shape(0.6, 4096, 4, changes=["a"], **timed),
    ])  # fmt: skip
    assert "- a: higher in 1 of 2; 0.5 to 1.5 times as much, median 1.000\n" in text
