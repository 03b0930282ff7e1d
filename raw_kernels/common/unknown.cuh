// What keeps the compiler from computing a value early.
#pragma once

// A value the compiler knows nothing of: what is computed from it is computed where it is needed, not kept in
// registers that the main loop has no room for.
inline int unknown(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
