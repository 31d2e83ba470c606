// y[m] = W x[m] for few rows x[m]: the product of a pass over the nodes of a tree with a weight matrix.
//
// W is stored in blocks of 32 outputs, [N / 32][K][32]; rows are contiguous. Sizes and dtypes are not checked
// here: packed_linear.py checks them.

#include <type_traits>
#include <vector>

namespace {

template <typename T>
void linear(const typename T::Number* w, const float* bias, const typename T::Number* x,
            typename T::Number* y, int64_t M, int64_t K, int64_t N) {
  const int64_t blocks = (N + BLOCK - 1) / BLOCK;
  const typename T::Row* rows;
  if constexpr (std::is_same_v<typename T::Row, typename T::Number>) {
    rows = x;
  } else {
    thread_local std::vector<typename T::Row> wide;
    wide.resize(M * K);
    T::widen(wide.data(), x, M * K);
    rows = wide.data();
  }
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    for (int64_t i = blocks * thread / threads; i < blocks * (thread + 1) / threads; i++) {
      const int64_t from = i * BLOCK, count = std::min(BLOCK, N - from);
      products<T>(w + from * K, rows, M, K, [&](int64_t m, float* sums) {
        if (bias)
          for (int64_t o = 0; o < BLOCK; o += LANES) save(sums + o, load(sums + o) + load(bias + from + o));
        T::store(y + m * N + from, sums, count);
      });
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

// The entry point for compiled code.
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
