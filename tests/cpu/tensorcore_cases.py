"""Instructions with their published parameters, and operands that try them."""

import zlib

import numpy as np
import slow_dot

from gpulab.formats import FORMATS
from gpulab.numerics.tensorcore import CAPABILITIES

V100, T4, A100, A2, ADA, H100, B200, RTX = CAPABILITIES
FP16 = {
    V100: "mma.sync.m8n8k4.f32.f16.f16.f32",
    T4: "mma.sync.m16n8k8.f32.f16.f16.f32",
    **dict.fromkeys((A100, A2, ADA, H100, B200, RTX), "mma.sync.m16n8k16.f32.f16.f16.f32"),
}
OLD, MIDDLE, NEW = (V100,), (T4, A100, A2, ADA), (H100, B200, RTX)


FP8_32 = "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"
WGMMA_8 = "wgmma.m64n8k32.f32.e4m3.e4m3"

# The published parameters once more, from the papers: group, result -> {k: (N, F)} by capability.
HALF = ("f16", "bf16")
FP8 = ("e4m3", "e5m2")
PUBLISHED = {
    (V100, "half"): {4: (4, 23)},
    (T4, "half"): {4: (4, 24), 8: (8, 24)},
    **{(c, "half"): {8: (8, 24), 16: (8, 24)} for c in (A100, A2, ADA)},
    **{(c, "half"): {8: (8, 25), 16: (16, 25)} for c in (H100, B200, RTX)},
    **{(c, "tf32"): {4: (4, 24), 8: (4, 24)} for c in (A100, A2, ADA)},
    **{(c, "tf32"): {4: (4, 25), 8: (8, 25)} for c in (H100, B200, RTX)},
    (ADA, "fp8"): {16: (16, 13), 32: (16, 13)},
    (H100, "fp8"): {32: (16, 25)},
    (B200, "fp8"): {32: (16, 25)},
    (RTX, "fp8"): {16: (16, 25), 32: (32, 25)},
}
SHAPE = {4: "m16n8k4", 8: "m16n8k8", 16: "m16n8k16", 32: "m16n8k32"}


def cases():
    """(instruction, capability, how) of every floating-point form without block scales."""
    for (cap, group), ks in PUBLISHED.items():
        types = {"half": HALF if cap >= A100 else ("f16",), "tf32": ("tf32",), "fp8": FP8}[group]
        for k, (n, f) in ks.items():
            shape = "m8n8k4" if (group, k) == ("half", 4) else SHAPE[k]
            for a in types:
                for b in types if group == "fp8" else (a,):
                    for d in ("f32", "f16") if a in ("f16", *FP8) else ("f32",):
                        short = group == "fp8" and cap == ADA
                        yield (
                            f"mma.sync.{shape}.{d}.{a}.{b}.{d}",
                            cap,
                            how(a, b, d, k, n, f, short, group == "fp8" and cap in (H100, B200)),
                        )
    for a in HALF:
        yield f"wgmma.m64n16k16.f32.{a}.{a}", H100, how(a, a, "f32", 16, 16, 25)
    yield "wgmma.m64n16k16.f16.f16.f16", H100, how("f16", "f16", "f16", 16, 16, 25)
    yield "wgmma.m64n16k8.f32.tf32.tf32", H100, how("tf32", "tf32", "f32", 8, 8, 25)
    for a in FP8:
        for b in FP8:
            yield f"wgmma.m64n8k32.f32.{a}.{b}", H100, how(a, b, "f32", 32, 32, 13, True)
            yield f"tcgen05.m128n8k32.f32.{a}.{b}", B200, how(a, b, "f32", 32, 32, 25)
    for a in ("e2m3", "e3m2", "e2m1"):
        for b in (a, "e4m3"):
            name = f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32"
            yield name, RTX, how(a, b, "f32", 32, 32, 25)


def how(a, b, d, k, n, f, short=False, through=False):
    result = "rne_f16" if d == "f16" else ("rz_e8m13" if short else "rz_f32")
    return {
        "a_type": a,
        "b_type": b,
        "d_type": d,
        "k": k,
        "block": n,
        "fraction": f,
        "result": result,
        "through_fp16": through,
    }


CASES = list(cases())
ROW = {ptx: "fp16" if ptx == "f16" else ptx for ptx in slow_dot.TYPES}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}


def dtype(ptx):
    return f"u{max(8, BITS[ptx]) // 8}"


def random_codes(rng, ptx, shape):
    """Codes of every kind: any bits, values near 1, small exponents, zeros."""
    bits = BITS[ptx]
    any_code = rng.integers(0, 1 << bits, shape, dtype=np.uint64)
    kind, _ = slow_dot.TYPES[ptx]
    plain = rng.standard_normal(shape).astype(np.float32).astype(kind)
    plain = plain.view(dtype(ptx)).astype(np.uint64)
    row = FORMATS[ROW[ptx]]
    tiny = any_code % np.uint64(1 << (row.mantissa_bits + 1 + (13 if ptx == "tf32" else 0)))
    which = rng.random(shape)
    out = np.select([which < 0.02, which < 0.75, which < 0.85], [any_code, plain, tiny], 0)
    return out.astype(dtype(ptx))


def random_c(rng, d, shape):
    kind, unsigned = (np.float16, np.uint16) if d == "f16" else (np.float32, np.uint32)
    spread = 2.0 ** rng.integers(-14 if d == "f16" else -30, 12, shape)
    plain = (rng.standard_normal(shape) * spread).astype(kind).view(unsigned)
    any_code = rng.integers(0, np.iinfo(unsigned).max, shape, dtype=np.uint64).astype(unsigned)
    return np.where(rng.random(shape) < 0.1, any_code, plain)


def seeded(*key):
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def encoded(values, ptx):
    kind, _ = slow_dot.TYPES[ptx]
    return np.asarray(values, np.float32).astype(kind).view(dtype(ptx))


def aligned_terms(rng, ptx, shape):
    """Signed powers of two and their halves more, spread so that alignment cuts many of them."""
    row = FORMATS[ROW[ptx]]
    reach = min(14, row.max_exponent - 1, -row.min_normal_exponent + 1)
    values = np.exp2(rng.integers(-reach, reach + 1, shape)) * rng.choice([1, 1.5, 1.25], shape)
    values *= rng.choice([-1, 1], shape)
    half = shape[-1] // 2
    values[..., half:] = np.where(
        rng.random((*shape[:-1], shape[-1] - half)) < 0.5,
        values[..., : shape[-1] - half],
        values[..., half:],
    )
    return encoded(values, ptx)


def dtype_sign(ptx):
    return np.dtype(dtype(ptx)).type(1 << (BITS[ptx] - 1))
