"""Capabilities: parsing, nearest rows, and limits against the CUDA headers."""

import pytest

from gpulab import arch
from gpulab.errors import UsageError


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("7.5", (7, 5)),
        ("8.9", (8, 9)),
        (" 9.0 ", (9, 0)),
        ("12.0", (12, 0)),
        ("sm_90a", (9, 0)),
        ("SM_120", (12, 0)),
        ("8.8", (8, 8)),
    ],
)
def test_parse(text, capability):
    assert arch.parse(text) == capability


@pytest.mark.parametrize("text", ["", "8", "eight", "8.9.1", "-8.9", "8,9", "nan", "sm_", "8.99"])
def test_parse_refuses_what_is_no_capability(text):
    with pytest.raises(UsageError, match="not a compute capability") as caught:
        arch.parse(text)
    assert caught.value.fix is not None


@pytest.mark.parametrize("text", ["7.0", "7.4", "6.1", "0.0"])
def test_too_old_says_what_the_lab_needs(text):
    with pytest.raises(UsageError, match="sm_75 or newer"):
        arch.parse(text)
    with pytest.raises(UsageError, match="sm_75 or newer"):
        arch.get((7, 0))


def test_an_unknown_generation_is_refused_and_an_unknown_minor_is_not():
    with pytest.raises(UsageError, match="not known"):
        arch.get((13, 0))
    assert arch.get((8, 8)).capability == (8, 7)
    assert arch.get((12, 1)).capability == (12, 1)
    assert arch.get((9, 9)).capability == (9, 0)


def test_targets():
    assert arch.get((7, 5)).target == "sm_75"
    assert arch.get((7, 5)).feature_target is None
    assert arch.get((9, 0)).feature_target == "sm_90a"
    assert arch.get((12, 0)).target == "sm_120"
    assert arch.get((12, 0)).feature_target == "sm_120a"


@pytest.mark.parametrize(
    ("capability", "threads", "blocks", "shared_kib", "block_kib"),
    [
        ((7, 5), 1024, 16, 64, 64),
        ((8, 0), 2048, 32, 164, 163),
        ((8, 6), 1536, 16, 100, 99),
        ((8, 9), 1536, 24, 100, 99),
        ((9, 0), 2048, 32, 228, 227),
        ((10, 0), 2048, 32, 228, 227),
        ((12, 0), 1536, 24, 100, 99),
    ],
)
def test_limits_of_the_programming_guide(capability, threads, blocks, shared_kib, block_kib):
    row = arch.get(capability)
    assert row.max_threads_per_sm == threads
    assert row.max_warps_per_sm == threads // 32
    assert row.max_blocks_per_sm == blocks
    assert row.shared_per_sm_bytes == shared_kib * 1024
    assert row.shared_per_block_bytes == block_kib * 1024
    assert row.registers_per_sm == 65536
    assert (row.register_allocation_unit, row.max_registers_per_thread) == (256, 255)


def test_every_emulated_capability_has_its_own_row():
    assert all(arch.get(c).capability == c for c in arch.EMULATED)


def test_a_capability_is_written_in_two_ways():
    assert (arch.dotted((8, 9)), arch.sm((8, 9))) == ("8.9", "sm_89")
    assert (arch.dotted((12, 0)), arch.sm((12, 0))) == ("12.0", "sm_120")
    for capability in arch.ARCHES:
        assert arch.parse(arch.dotted(capability)) == arch.parse(arch.sm(capability)) == capability


def test_what_is_not_emulated_is_refused_with_what_is():
    for capability in arch.EMULATED:
        arch.check_emulated(capability)
    with pytest.raises(UsageError, match=r"no capability 8\.7") as caught:
        arch.check_emulated((8, 7))
    assert "7.5, 8.0, 8.6, 8.9" in caught.value.fix
