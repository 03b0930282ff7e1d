"""What scripts/attention_limits.py times: the shipped kernel, edited copies of it, other tiles."""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab import registry
from gpulab.errors import BuildError, UsageError
from gpulab.kernels.attention import mma
from gpulab.kernels.attention.mma import Tile
from gpulab.kernels.attention.problem import blocks
from gpulab.registry import Capability, Case, Dims, LaunchPlan, RawBuild
from gpulab.runtime import sources

Edits = tuple[tuple[str, str], ...]

SOURCE = "attention/mma.cu"
HEAD_DIM = 128


def problem(batch: int, heads: int, seq: int, causal: int) -> dict[str, int]:
    """Self-attention without window, bias and mask."""
    return {
        "batch": batch, "heads": heads, "kv_heads": heads, "seq_q": seq, "seq_k": seq,
        "head_dim": HEAD_DIM, "causal": causal, "window": 0, "bias_planes": 0, "mask_planes": 0,
    }  # fmt: skip


PROBLEMS = tuple(problem(b, 16, s, c) for b, s in ((4, 4096), (1, 16384)) for c in (0, 1))
JUDGED = problem(1, 2, 320, 1)
"""Where tile shapes are judged: more than one block, and a block's last queries are none."""

EXPONENTIAL: Edits = (
    (
        "const float p = ptx::exp2_approx(fmaf(s[i][j][2 * h + e], exponent, -b));",
        "const float p = fmaf(s[i][j][2 * h + e], exponent, -b);",
    ),
)
SOFTMAX: Edits = (("        warp.probabilities(exponent);\n", ""),)
COPIES: Edits = (
    ("        if (wanted) {", "        if (wanted && left > s.seq_k - T::kStages * T::kKeys) {"),
)
"""The first tiles stay in every stage, so that products are of real numbers."""
BARRIER: Edits = (("        __syncthreads();\n        fetch", "        fetch"),)
LEFT_OUT: dict[str, Edits] = {
    "exponential": EXPONENTIAL,
    "softmax": SOFTMAX,
    "copies": COPIES,
    "barrier": BARRIER,
    "all but the products": SOFTMAX + COPIES + BARRIER,
}
"""What is left out, and the replacements in the source, each of which must be there once."""

TILES = (
    Tile(4, 2, 64, group=1, blocks=2),
    Tile(4, 2, 64, group=8, blocks=2),
    Tile(4, 2, 48, group=16, blocks=2),
    Tile(4, 2, 32, group=16, blocks=2),
    Tile(4, 2, 32, stages=4, group=16, blocks=2),
    Tile(8, 2, 64, group=16),
    Tile(8, 2, 64, stages=3, group=16),
    Tile(2, 2, 32, group=16, blocks=4),
    Tile(8, 1, 64, group=16),
    Tile(4, 1, 64, group=16, blocks=2),
)
"""Others than the shipped one."""


def flattened(source: str = SOURCE) -> str:
    """The source with the headers beside it put where they are included."""
    seen: set[str] = set()

    def include(found: re.Match[str]) -> str:
        if found[1] in seen:
            return ""
        seen.add(found[1])
        return expand(found[1])

    def expand(path: str) -> str:
        text = sources.read(sources.resolve(path)).replace("#pragma once\n", "")
        return re.sub(r'^#include "(attention/[\w.]+)"\n', include, text, flags=re.MULTILINE)

    return expand(source)


def edited(text: str, edits: Edits) -> str:
    """The text with every replacement made.

    Raises:
        UsageError: what is to be replaced is not there, or more than once.
    """
    for old, new in edits:
        if (count := text.count(old)) != 1:
            raise UsageError(
                f"{SOURCE} and its headers have {count} times, not once: {old.strip()!r}",
                fix="write the edit anew for the source as it is",
            )
        text = text.replace(old, new)
    return text


@dataclass(frozen=True)
class Candidate:
    """A kernel that is timed.

    Args:
        tile: its share of the work.
        kind: ``shipped``, ``ablation`` (it computes something else by design) or ``tile``.
        left_out: of an ablation, in words.
        edits: replacements in the source; None: the source as it is shipped.
    """

    tile: Tile
    kind: str
    left_out: str = ""
    edits: Edits | None = None

    @property
    def name(self) -> str:
        return self.left_out or self.tile.cpp

    def request(self, capability: Capability, folder: Path) -> RawBuild:
        """What to compile; an edited source is written to ``folder``."""
        made = mma.build(shipped().variant, capability, JUDGED)
        usual = mma.tile(capability, HEAD_DIM)
        made = replace(made, entry=made.entry.replace(usual.cpp, self.tile.cpp))
        if self.edits is None:
            return made
        path = folder / f"{'_'.join(self.left_out.split()) or 'unedited'}.cu"
        path.write_text(edited(flattened(), self.edits))
        return replace(made, source=str(path))

    def case(self, request: RawBuild) -> Case:
        """A row of the lab with this kernel in the shipped one's place."""

        def plan(_: Any, __: Any, dims: Dims) -> LaunchPlan:
            t = self.tile
            grid = (blocks(dims, t.rows), 1, 1)
            return LaunchPlan(grid, (t.threads, 1, 1), t.shared_bytes(dims["head_dim"]))

        base = shipped()
        spec = replace(base.spec, name=self.name, build=lambda *_: request, plan=plan)
        return replace(base, spec=spec)


def shipped() -> Case:
    """The row of the lab."""
    return next(registry.cases("attention", kernel="mma", backend="raw", format="bf16"))


def candidates(capability: Capability) -> list[Candidate]:
    """The shipped kernel, what leaves something out of it, other tiles."""
    tile = mma.tile(capability, HEAD_DIM)
    return [
        Candidate(tile, "shipped"),
        *(Candidate(tile, "ablation", name, edits) for name, edits in LEFT_OUT.items()),
        *(Candidate(each, "tile") for each in TILES if each != tile),
    ]


def machine_code(cubin: bytes, symbol: str) -> bytes:
    """The instructions of a kernel, without its line table.

    Raises:
        BuildError: the object holds no such kernel.
    """
    (table,) = struct.unpack_from("<Q", cubin, 0x28)  # ELF64: section headers, then their names
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<2I4Q", cubin, table + i * size) for i in range(count)]
    for name, _, _, _, start, length in sections:
        at = sections[names][4] + name
        if cubin[at : cubin.index(b"\0", at)] == f".text.{symbol}".encode():
            return cubin[start : start + length]
    raise BuildError(f"the object has no code of {symbol}")
