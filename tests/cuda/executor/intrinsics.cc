#include "tests/cuda/executor/intrinsics.h"

extern "C" {
float __expf(float x) noexcept { return expf(x); }
float __logf(float x) noexcept { return logf(x); }
float __log2f(float x) noexcept { return log2f(x); }
float __sinf(float x) noexcept { return sinf(x); }
float __cosf(float x) noexcept { return cosf(x); }
float __powf(float x, float y) noexcept { return powf(x, y); }
}
