// 16-byte loads and stores, and byte offsets. The caller guarantees the alignment.
#pragma once

inline float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

inline void store4(float* to, float4 value) { *reinterpret_cast<float4*>(to) = value; }

template <typename T>
const T* offset_bytes(const T* from, size_t bytes) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(from) + bytes);
}
