"""docs/gates.md: its example is recomputed, its table of reasons is the code's."""

import doctest
import re
from pathlib import Path

from gpulab.numerics.verdict import INCONCLUSIVE_CODES, REASONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gates.md"


def test_the_example_holds():
    found = doctest.testfile(str(PAGE), module_relative=False, raise_on_error=False)
    assert found.attempted > 10
    assert found.failed == 0


def test_the_table_of_reasons_is_complete_and_in_order():
    rows = re.findall(r"^\| `([a-z-]+)` \| (FAIL|INCONCLUSIVE) \|", PAGE.read_text(), re.M)
    assert [code for code, _ in rows] == list(REASONS)
    for code, verdict in rows:
        assert (verdict == "INCONCLUSIVE") == (code in INCONCLUSIVE_CODES)
