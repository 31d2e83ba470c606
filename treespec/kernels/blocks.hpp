// Products of a few rows with a matrix, 32 outputs at a time, summed in registers.
//
// The matrix is stored in blocks of 32 outputs: [K][32], or in bfloat16 by pairs of inputs, [K / 2][32][2]. A block
// is a stream that is read once and prefetched; the numbers of each row are broadcast. Rows of bfloat16 are widened
// to float32, unless the processor multiplies pairs as fast as single numbers, in which case build.py defines
// TREESPEC_PAIRS.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#if !defined(__AVX512BF16__)
#undef TREESPEC_PAIRS
#elif defined(TREESPEC_PAIRS)
#include <immintrin.h>
#endif
#include <omp.h>

namespace {

constexpr int64_t BLOCK = 32;    // outputs
constexpr int64_t FAR = 16384;   // bytes ahead that are prefetched into the second-level cache
constexpr int64_t NEAR = 512;    // bytes ahead that are prefetched into the first-level cache

// Vectors are as wide as the processor's. GCC splits wider ones through memory: on an AVX2 processor, vectors of 64
// bytes were 5 to 30 times slower. MOST is the number of rows whose sums fit into registers.
#if defined(TREESPEC_BYTES)
#elif defined(__AVX512F__)
#define TREESPEC_BYTES 64
#elif defined(__AVX2__)
#define TREESPEC_BYTES 32
#else
#define TREESPEC_BYTES 16
#endif

#if defined(TREESPEC_ROWS)
constexpr int MOST = TREESPEC_ROWS;
#elif defined(__AVX512F__)
constexpr int MOST = 12;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int MOST = 3;
#else
constexpr int MOST = 1;
#endif

typedef float Floats __attribute__((vector_size(TREESPEC_BYTES), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(TREESPEC_BYTES), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(TREESPEC_BYTES / 2), aligned(2), may_alias));
constexpr int64_t LANES = TREESPEC_BYTES / 4;
constexpr int PARTS = BLOCK / LANES;  // vectors of a row's sums

// Loops are vectorised by hand, since compiled passes are compiled without automatic vectorisation.
inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }

inline void save(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }

template <int M>
inline void keep(const Floats (&sums)[M][PARTS], float (*y)[BLOCK]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++) save(y[m] + p * LANES, sums[m][p]);
}

// Prefetch two later cache lines of a matrix. The first-level cache alone cannot have enough lines in flight.
template <typename T>
inline void ask_ahead(const T* w) {
  for (int64_t line = 0; line < 128; line += 64) {
    __builtin_prefetch((const char*)w + FAR + line, 0, 2);
    __builtin_prefetch((const char*)w + NEAR + line);
  }
}

struct Single {
  using Number = float;  // of the matrix, and of results
  using Row = float;

  template <int M>
  static void block(const float* w, const float* x, float (*y)[BLOCK], int64_t K, int64_t stride) {
    Floats sums[M][PARTS] = {};
    for (int64_t k = 0; k < K; k++, w += stride) {
      ask_ahead(w);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const float input = x[m * K + k];
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) sums[m][p] += load(w + p * LANES) * input;
      }
    }
    keep<M>(sums, y);
  }

  static void store(float* to, const float* sums, int64_t count) {
    if (count < BLOCK) return void(std::memcpy(to, sums, 4 * count));
    for (int64_t i = 0; i < BLOCK; i += LANES) save(to + i, load(sums + i));
  }

  static void widen(float* to, const float* from, int64_t count) { std::memcpy(to, from, 4 * count); }
};

struct Brain {
  using Number = uint16_t;

#if defined(TREESPEC_PAIRS)
  using Row = uint16_t;

  template <int M>
  static void block(const uint16_t* w, const uint16_t* x, float (*y)[BLOCK], int64_t K, int64_t stride) {
    Floats sums[M][PARTS] = {};
    for (int64_t k = 0; k < K; k += 2, w += 2 * stride) {
      ask_ahead(w);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        int32_t pair;
        std::memcpy(&pair, x + m * K + k, 4);
        const __m512bh inputs = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) {
          const __m512bh a = (__m512bh)_mm512_loadu_si512(w + 2 * p * LANES);
          sums[m][p] = (Floats)_mm512_dpbf16_ps((__m512)sums[m][p], a, inputs);
        }
      }
    }
    keep<M>(sums, y);
  }

  static void widen(uint16_t* to, const uint16_t* from, int64_t count) { std::memcpy(to, from, 2 * count); }
#else
  using Row = float;

  template <int M>
  static void block(const uint16_t* w, const float* x, float (*y)[BLOCK], int64_t K, int64_t stride) {
    Floats sums[M][PARTS] = {};
    for (int64_t k = 0; k < K; k += 2, w += 2 * stride) {
      ask_ahead(w);
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p += 2) {  // two vectors: more would not fit beside the sums
        const Words a = *reinterpret_cast<const Words*>(w + 2 * p * LANES);
        const Words b = *reinterpret_cast<const Words*>(w + 2 * (p + 1) * LANES);
        const Floats a0 = (Floats)(a << 16), a1 = (Floats)(a & 0xffff0000u);
        const Floats b0 = (Floats)(b << 16), b1 = (Floats)(b & 0xffff0000u);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          const float first = x[m * K + k], second = x[m * K + k + 1];
          sums[m][p] += a0 * first;
          sums[m][p + 1] += b0 * first;
          sums[m][p] += a1 * second;
          sums[m][p + 1] += b1 * second;
        }
      }
    }
    keep<M>(sums, y);
  }

  static void widen(float* to, const uint16_t* from, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) save(to + i, (Floats)(words(from + i) << 16));
    for (; i < count; i++) {
      const uint32_t bits = uint32_t(from[i]) << 16;
      std::memcpy(to + i, &bits, 4);
    }
  }
#endif

  static Words words(const uint16_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words);
  }

  static void store(uint16_t* to, const float* sums, int64_t count) {
    uint16_t buffer[BLOCK];
    uint16_t* block = count == BLOCK ? to : buffer;
    for (int64_t i = 0; i < BLOCK; i += LANES)
      *reinterpret_cast<Halves*>(block + i) = __builtin_convertvector(rounded(load(sums + i)), Halves);
    if (count < BLOCK) std::memcpy(to, buffer, 2 * count);
  }

  // Round to nearest, ties to even.
  static Words rounded(Floats values) {
    const Words bits = (Words)values, nan = (Words)((bits & 0x7fffffffu) > 0x7f800000u);
    return (nan & 0x7fc0u) | (~nan & ((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16));
  }
};

template <typename T, int M>
void some_rows(int m, const typename T::Number* w, const typename T::Row* x, int64_t K, float (*y)[BLOCK],
               int64_t stride) {
  if (m == M) return T::template block<M>(w, x, y, K, stride);
  if constexpr (M > 1) some_rows<T, M - 1>(m, w, x, K, y, stride);
}

// Products of M contiguous rows with a block; calls take(row, its 32 sums) for each row. `stride`: numbers from one
// input to the next; single numbers need no block.
template <typename T, typename Take>
void products(const typename T::Number* w, const typename T::Row* x, int64_t M, int64_t K, Take take,
              int64_t stride = BLOCK) {
  const int64_t parts = (M + MOST - 1) / MOST;
  for (int64_t part = 0; part < parts; part++) {
    const int64_t first = M * part / parts, last = M * (part + 1) / parts;
    float sums[MOST][BLOCK];
    some_rows<T, MOST>(int(last - first), w, x + first * K, K, sums, stride);
    for (int64_t m = first; m < last; m++) take(m, sums[m - first]);
  }
}

}  // namespace
