"""What follows from a format's row: computed, never typed in."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from gpulab.formats.row import Format


class Derived:
    """Constants of a row; mixed into ``Format``, all exact in float64."""

    @property
    def _row(self) -> Format:
        return cast("Format", self)

    @property
    def signed(self) -> bool:
        """Whether codes carry a sign."""
        return self._row.specials not in ("scale", "unsigned")

    @cached_property
    def bits(self) -> int:
        """Width of a code: sign, exponent and mantissa (19 of the 32-bit register for tf32)."""
        return int(self.signed) + self._row.exponent_bits + self._row.mantissa_bits

    @cached_property
    def is_integer(self) -> bool:
        """Whether codes are integers rather than floating point."""
        return self._row.specials in ("integer", "unsigned")

    @property
    def eps(self) -> float:
        """Gap from 1.0 to the next larger value: 2^-mantissa_bits (1 for integers)."""
        return 1.0 if self.is_integer else 2.0**-self._row.mantissa_bits

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest in the normal range: eps / 2."""
        return self.eps / 2

    @property
    def max_code(self) -> int:
        """Code of the largest finite value (sign bit clear)."""
        row = self._row
        if self.is_integer:
            return (1 << row.mantissa_bits) - 1
        all_ones = (1 << (row.exponent_bits + row.mantissa_bits)) - 1
        if row.specials == "none":
            return all_ones
        if row.specials == "ieee":
            return all_ones - (1 << row.mantissa_bits)
        return all_ones - 1

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value (emax; 8 for e4m3)."""
        row = self._row
        if self.is_integer:
            return row.mantissa_bits - 1
        return (self.max_code >> row.mantissa_bits) - row.bias

    @cached_property
    def max_finite(self) -> float:
        """Largest finite value."""
        row = self._row
        if self.is_integer:
            return float(self.max_code)
        fraction = self.max_code & ((1 << row.mantissa_bits) - 1)
        return float(np.ldexp(1.0 + fraction * self.eps, self.max_exponent))

    @property
    def min_finite(self) -> float:
        """Most negative value: -max_finite, one less for two's complement; smallest unsigned."""
        if self.is_integer:
            return -self.max_finite - 1 if self.signed else 0.0
        return -self.max_finite if self.signed else self.min_normal

    @property
    def min_normal_exponent(self) -> int:
        """Exponent of the smallest normal value: 1 - bias (-bias where there is no subnormal)."""
        row = self._row
        return 0 if self.is_integer else (1 - row.bias if self.signed else -row.bias)

    @property
    def min_normal(self) -> float:
        """Smallest positive value with an implicit leading one (1 for integers)."""
        return float(np.ldexp(1.0, self.min_normal_exponent))

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value; equals ``min_normal`` where there are no subnormals."""
        return self.min_normal * self.eps

    @property
    def has_inf(self) -> bool:
        """Whether a code means infinity."""
        return self._row.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether a code means not-a-number."""
        return self._row.specials in ("ieee", "nan_only", "scale")

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """NumPy type that holds one code (one element's code for a block format)."""
        row = self._row
        if self.is_integer and self.signed and self.bits == 8:
            return np.dtype(np.int8)
        if self.bits > 16:
            return np.dtype(np.float32)
        if (row.exponent_bits, row.mantissa_bits) == (5, 10):
            return np.dtype(np.float16)
        return np.dtype(np.uint16 if self.bits > 8 else np.uint8)

    @cached_property
    def container_shift(self) -> int:
        """Unused low bits of the container: 13 for tf32, 0 elsewhere (codes are right-aligned)."""
        return 8 * self.storage.itemsize - self.bits if self.storage.kind == "f" else 0
