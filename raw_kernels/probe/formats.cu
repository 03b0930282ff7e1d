// D (16, 8) = A (16, k) B (k, 8) + C (16, 8) by one warp: 32 bytes of k, which is one instruction, or two where
// the capability only has the half-depth one. A and C are row-major, B is column-major, C and D are float32.
//
// The idea: the smallest program that proves that a card multiplies a number format. Every lane loads its words
// of the operands straight from global memory in the fragment layout of ptx/mma.cuh; nothing else happens, so
// the result is the instruction's and can be compared bit for bit with a model of it.
//
// Limits: launch one block of 32 threads; pointers 4-byte aligned.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k8 / .m16n8k16 / .m16n8k32".
#include "ptx/mma_narrow.cuh"

template <class Operand, int kInstructionK>
__global__ void formats_probe(const unsigned* a, const unsigned* b, const float* c, float* d) {
  constexpr int kWords = 8, kN = 8;  // 32 bytes of k; columns of C
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const unsigned a_words[4] = {a[g * kWords + t], a[(g + 8) * kWords + t], a[g * kWords + t + 4],
                               a[(g + 8) * kWords + t + 4]};
  const unsigned b_words[2] = {b[g * kWords + t], b[g * kWords + t + 4]};
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(g + i / 2 * 8) * kN + 2 * t + i % 2];
  ptx::Atom<Operand, float, kInstructionK>::multiply(sums, a_words, b_words);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * kN + 2 * t + i % 2] = sums[i];
}
