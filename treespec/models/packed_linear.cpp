// y[m] = W x[m] for few rows x[m]: what a pass over the nodes of a tree asks of each weight matrix.
//
// W lies in blocks of 32 outputs, each a stream that is read once: [N / 32][K][32], of bfloat16 in pairs of
// inputs, [N / 32][K / 2][32][2]. Sums of a block stay in registers; each row's numbers are broadcast. Rows lie
// behind one another. Sizes and dtypes are not looked at here: packed_linear.py vouches for them.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__AVX512BF16__) && !defined(TREESPEC_PORTABLE)
#include <immintrin.h>
#endif
#include <omp.h>

namespace {

constexpr int64_t BLOCK = 32;  // outputs

// Rows whose sums fit into registers.
#if defined(TREESPEC_ROWS)
constexpr int MOST = TREESPEC_ROWS;
#elif defined(__AVX512F__)
constexpr int MOST = 12;
#elif defined(__aarch64__)
constexpr int MOST = 3;
#else
constexpr int MOST = 2;
#endif

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

template <int M>
inline void keep(const Floats (&low)[M], const Floats (&high)[M], float (*y)[BLOCK]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; m++) {
    std::memcpy(y[m], &low[m], 64);
    std::memcpy(y[m] + 16, &high[m], 64);
  }
}

struct Single {
  using Number = float;

  template <int M>
  static void block(const float* w, const float* x, float (*y)[BLOCK], int64_t K) {
    Floats low[M] = {}, high[M] = {};
    for (int64_t k = 0; k < K; k++, w += BLOCK) {
      const Floats a = *reinterpret_cast<const Floats*>(w);
      const Floats b = *reinterpret_cast<const Floats*>(w + 16);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const float one = x[m * K + k];
        low[m] += a * one;
        high[m] += b * one;
      }
    }
    keep<M>(low, high, y);
  }

  static void store(float* to, const float* sums, int64_t count) { std::memcpy(to, sums, 4 * count); }
};

struct Brain {
  using Number = uint16_t;

#if defined(__AVX512BF16__) && !defined(TREESPEC_PORTABLE)
  template <int M>
  static void block(const uint16_t* w, const uint16_t* x, float (*y)[BLOCK], int64_t K) {
    Floats low[M] = {}, high[M] = {};
    for (int64_t k = 0; k < K; k += 2, w += 2 * BLOCK) {
      const __m512bh a = (__m512bh)_mm512_loadu_si512(w);
      const __m512bh b = (__m512bh)_mm512_loadu_si512(w + BLOCK);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        int32_t pair;
        std::memcpy(&pair, x + m * K + k, 4);
        const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
        low[m] = (Floats)_mm512_dpbf16_ps((__m512)low[m], a, both);
        high[m] = (Floats)_mm512_dpbf16_ps((__m512)high[m], b, both);
      }
    }
    keep<M>(low, high, y);
  }
#else
  static float wide(uint16_t number) {
    const uint32_t bits = uint32_t(number) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  template <int M>
  static void block(const uint16_t* w, const uint16_t* x, float (*y)[BLOCK], int64_t K) {
    Floats low[M] = {}, high[M] = {};
    for (int64_t k = 0; k < K; k += 2, w += 2 * BLOCK) {
      const Words a = *reinterpret_cast<const Words*>(w);
      const Words b = *reinterpret_cast<const Words*>(w + BLOCK);
      const Floats a0 = (Floats)(a << 16), a1 = (Floats)(a & 0xffff0000u);
      const Floats b0 = (Floats)(b << 16), b1 = (Floats)(b & 0xffff0000u);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const float first = wide(x[m * K + k]), second = wide(x[m * K + k + 1]);
        low[m] += a0 * first;
        low[m] += a1 * second;
        high[m] += b0 * first;
        high[m] += b1 * second;
      }
    }
    keep<M>(low, high, y);
  }
#endif

  static void store(uint16_t* to, const float* sums, int64_t count) {
    for (int64_t i = 0; i < count; i++) {  // to the nearest, ties to even
      uint32_t bits;
      std::memcpy(&bits, sums + i, 4);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      to[i] = nan ? 0x7fc0 : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
    }
  }
};

template <typename T, int M>
void rows(const typename T::Number* w, const float* bias, const typename T::Number* x, typename T::Number* y,
          int64_t K, int64_t N, int64_t count) {
  float sums[M][BLOCK];
  T::template block<M>(w, x, sums, K);
  for (int m = 0; m < M; m++) {
    if (bias)
      for (int64_t i = 0; i < BLOCK; i++) sums[m][i] += bias[i];
    T::store(y + m * N, sums[m], count);
  }
}

template <typename T, int M>
void some_rows(int m, const typename T::Number* w, const float* bias, const typename T::Number* x,
               typename T::Number* y, int64_t K, int64_t N, int64_t count) {
  if (m == M) return rows<T, M>(w, bias, x, y, K, N, count);
  if constexpr (M > 1) some_rows<T, M - 1>(m, w, bias, x, y, K, N, count);
}

template <typename T>
void linear(const typename T::Number* w, const float* bias, const typename T::Number* x,
            typename T::Number* y, int64_t M, int64_t K, int64_t N) {
  const int64_t blocks = (N + BLOCK - 1) / BLOCK, parts = (M + MOST - 1) / MOST;
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    for (int64_t i = blocks * thread / threads; i < blocks * (thread + 1) / threads; i++)
      for (int64_t part = 0; part < parts; part++) {
        const int64_t first = M * part / parts, last = M * (part + 1) / parts;
        some_rows<T, MOST>(int(last - first), w + i * BLOCK * K, bias ? bias + i * BLOCK : nullptr,
                           x + first * K, y + first * N + i * BLOCK, K, N, std::min(BLOCK, N - i * BLOCK));
      }
  }
}

}  // namespace

extern "C" {

void treespec_packed_linear(const void* w, const float* bias, const void* x, void* y, int64_t M, int64_t K,
                            int64_t N, int32_t brain) {
  if (brain)
    linear<Brain>((const uint16_t*)w, bias, (const uint16_t*)x, (uint16_t*)y, M, K, N);
  else
    linear<Single>((const float*)w, bias, (const float*)x, (float*)y, M, K, N);
}

// What compiled code calls.
AOTITorchError aoti_torch_cpu_packed_linear(AtenTensorHandle x, AtenTensorHandle packed,
                                            AtenTensorHandle* bias, int64_t N, AtenTensorHandle* result) {
  int64_t dims, sizes[8], strides[8];
  int32_t dtype;
  void *from, *weights, *sums = nullptr, *to;
  AOTITorchError error = aoti_torch_get_dim(x, &dims);
  error |= aoti_torch_get_dtype(x, &dtype);
  error |= aoti_torch_get_data_ptr(x, &from) | aoti_torch_get_data_ptr(packed, &weights);
  if (bias) error |= aoti_torch_get_data_ptr(*bias, &sums);
  if (error || dims > 8) return AOTI_TORCH_FAILURE;
  int64_t M = 1;
  for (int64_t i = 0; i < dims; i++) {
    error |= aoti_torch_get_size(x, i, &sizes[i]);
    if (i < dims - 1) M *= sizes[i];
  }
  const int64_t K = sizes[dims - 1];
  sizes[dims - 1] = N;
  for (int64_t i = dims - 1, stride = 1; i >= 0; stride *= sizes[i--]) strides[i] = stride;
  error |= aoti_torch_empty_strided(dims, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, result);
  error |= aoti_torch_get_data_ptr(*result, &to);
  if (error) return AOTI_TORCH_FAILURE;
  treespec_packed_linear(weights, (const float*)sums, from, to, M, K, N,
                         dtype == aoti_torch_dtype_bfloat16());
  return AOTI_TORCH_SUCCESS;
}

}  // extern "C"
