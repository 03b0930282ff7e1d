// Attention on CUDA cores: see attention/simt.cuh. Rows of the table differ in how Q, K, V and the
// result are stored and in nothing else.
#include "attention/simt.cuh"
