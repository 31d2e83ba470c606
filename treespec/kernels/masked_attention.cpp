// Attention of few rows to many keys under one mask: the attention of a layer in a pass over the nodes of a tree.
//
// Query heads that share keys are rows of one product with them, so keys and values are read once. CHUNK keys at a
// time are copied into blocks (blocks.hpp) and multiplied; their scores become weights, which multiply their values:
// in float32 where these lie, since a copy for few rows takes longer than the product. Sums of earlier chunks are
// rescaled when a larger score occurs. If the threads cannot be divided evenly among the key heads, the keys of a
// head are read in parts, which are joined at the end. Sizes and dtypes are not checked here: masked_attention.py
// checks them.

#include <cmath>
#include <limits>
#include <numeric>

namespace {

constexpr int64_t CHUNK = 128;       // keys: a multiple of BLOCK
constexpr int64_t LEAST_PART = 256;  // keys of a part
constexpr int64_t ROWS_NEAR = 4096;  // bytes ahead that are prefetched into the first-level cache
constexpr float LOWEST = std::numeric_limits<float>::lowest();

// The nodes of a text's tree: what each row may attend to, computed where it is needed.
struct Tree {
  const int32_t *rank, *end, *depth;  // of all nodes
  int64_t committed, first, window;   // rows before node 0, the first node with a row, 0 for no window

  // Additive mask of a row over the keys from `key` on.
  void bias(float* to, int64_t row, int64_t key, int64_t keys) const {
    const int64_t own = first + row, position = committed + depth[own];
    const int64_t hidden = window ? std::max<int64_t>(0, position - window + 1) : 0;  // keys before the window
    for (int64_t k = 0; k < keys; k++) {
      const int64_t node = key + k - committed;
      bool visible = key + k >= hidden;
      if (node >= 0)
        visible = rank[node] <= rank[own] && rank[own] < end[node] && committed + depth[node] >= hidden;
      to[k] = visible ? 0.0f : LOWEST;
    }
  }
};

struct Call {
  const void *query, *key, *value;
  const float *bias, *sinks;  // sinks may be null; bias is null if there is a tree
  void* out;                  // [nodes][heads][value_dim]
  int64_t heads, shared, nodes, keys, key_dim, value_dim;
  int64_t query_head, query_node, key_head, key_row, value_head, value_row;  // strides
  float scale, softcap;       // 0 for no softcap
  const Tree* tree;           // null if there is a bias

  int64_t group() const { return heads / shared; }
  int64_t rows() const { return group() * nodes; }  // rows that read the same keys
};

inline Floats hyperbolic_tangent(Floats x) {
  const Words sign = (Words)x & 0x80000000u;
  const Floats e = exponential((Floats)((Words)x | 0x80000000u) * 2.0f);
  return (Floats)((Words)((1.0f - e) / (1.0f + e)) | sign);
}

inline Words pick(Words a, Words b, Words from) {
#if defined(__clang__)
  Words picked;
  for (int i = 0; i < LANES; i++) picked[i] = from[i] < LANES ? a[from[i]] : b[from[i] - LANES];
  return picked;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

template <uint32_t HALF>
inline void exchange(Words (&rows)[LANES]) {
  Words low, high;
#pragma GCC unroll 16
  for (uint32_t i = 0; i < LANES; i++) {
    low[i] = i & HALF ? LANES + i - HALF : i;
    high[i] = i & HALF ? LANES + i : i + HALF;
  }
#pragma GCC unroll 16
  for (uint32_t i = 0; i < LANES; i++) {
    if (i & HALF) continue;
    const Words a = rows[i], b = rows[i + HALF];
    rows[i] = pick(a, b, low);
    rows[i + HALF] = pick(a, b, high);
  }
  if constexpr (HALF > 1) exchange<HALF / 2>(rows);
}

// Prefetch later keys or values, which lie behind these.
template <typename T>
inline void ask_rows_ahead(const T* from) {
  __builtin_prefetch((const char*)from + FAR, 0, 2);
  __builtin_prefetch((const char*)from + ROWS_NEAR);
}

// Transpose LANES rows of LANES words into columns of a block.
inline void transposed(uint32_t* to, const uint32_t* from, int64_t stride) {
  Words rows[LANES];
#pragma GCC unroll 16
  for (int64_t i = 0; i < LANES; i++) {
    ask_rows_ahead(from + i * stride);
    rows[i] = *reinterpret_cast<const Words*>(from + i * stride);
  }
  exchange<LANES / 2>(rows);
#pragma GCC unroll 16
  for (int64_t i = 0; i < LANES; i++) *reinterpret_cast<Words*>(to + i * BLOCK) = rows[i];
}

// 32 keys in the order of `products`; a word is one number or a pair of numbers. Keys behind the last one are zeros,
// and words are padded with zeros to a multiple of LANES.
inline void key_block(uint32_t* to, const uint32_t* from, int64_t stride, int64_t keys, int64_t words) {
  for (int64_t key = 0; key < BLOCK; key += LANES)
    for (int64_t word = 0; word < words; word += LANES) {
      const uint32_t* const corner = from + key * stride + word;
      const int64_t high = std::min(LANES, keys - key), wide = std::min(LANES, words - word);
      if (high == LANES && wide == LANES) {
        transposed(to + word * BLOCK + key, corner, stride);
        continue;
      }
      uint32_t padded[LANES * LANES] = {};
      for (int64_t i = 0; i < high; i++) std::memcpy(padded + i * LANES, corner + i * stride, 4 * wide);
      transposed(to + word * BLOCK + key, padded, LANES);
    }
}

struct SingleChunk : Single {
  static constexpr int64_t PAIR = 1;

  // `count` outputs of each key's value, in the order of `products`.
  static void value_block(float* to, const float* from, int64_t stride, int64_t keys, int64_t count) {
    for (int64_t k = 0; k < keys; k++, to += BLOCK) {
      std::memcpy(to, from + k * stride, 4 * count);
      std::memset(to + count, 0, 4 * (BLOCK - count));
    }
  }

  // Store weights as rows of `products`; return them as stored.
  static Floats keep_weights(float* to, Floats weights) {
    save(to, weights);
    return weights;
  }
};

struct BrainChunk : Brain {
  static constexpr int64_t PAIR = 2;

  static void value_block(uint16_t* to, const uint16_t* from, int64_t stride, int64_t keys, int64_t count) {
    uint16_t padded[2][BLOCK] = {};
    for (int64_t k = 0; k < keys; k += 2, to += 2 * BLOCK) {
      const uint16_t *value = from + k * stride, *next = value + stride;
      ask_rows_ahead(value);
      ask_rows_ahead(next);
      if (count < BLOCK || k + 1 == keys) {
        std::memcpy(padded[0], value, 2 * count);
        if (k + 1 < keys)
          std::memcpy(padded[1], next, 2 * count);
        else
          std::memset(padded[1], 0, 2 * BLOCK);
        value = padded[0], next = padded[1];
      }
      for (int64_t i = 0; i < BLOCK; i += LANES)
        *reinterpret_cast<Words*>(to + 2 * i) = words(value + i) | (words(next + i) << 16);
    }
  }

  static Floats keep_weights(Row* to, Floats weights) {
#if defined(TREESPEC_PAIRS)
    const Words kept = rounded(weights);
    *reinterpret_cast<Halves*>(to) = __builtin_convertvector(kept, Halves);
    return (Floats)(kept << 16);
#else
    save(to, weights);
    return weights;
#endif
  }
};

// Partial results of rows: the largest score, and relative to it the sums of weights and of weighted values.
struct Found {
  float *tops, *totals, *sums;
};

// Turn the scores of a chunk's keys into weights; return the factor that rescales earlier partial results.
template <typename T>
float weigh(const Call& call, float* scores, const float* bias, int64_t keys, typename T::Row* weights,
            float& top, float& total) {
  Floats most = Floats{} + top;
  for (int64_t k = 0; k < keys; k += LANES) {
    Floats score = load(scores + k) * call.scale, hidden = Floats{} - INFINITY;
    if (call.softcap) score = call.softcap * hyperbolic_tangent(score / call.softcap);
    std::memcpy(&hidden, bias + k, 4 * std::min(LANES, keys - k));
    score += hidden;
    save(scores + k, score);
    most = score > most ? score : most;
  }
  float highest = top;
  for (int64_t i = 0; i < LANES; i++) highest = std::max(highest, most[i]);
  Floats sum = {};
  for (int64_t k = 0; k < keys; k += LANES)
    sum += T::keep_weights(weights + k, exponential(load(scores + k) - highest));
  const float factor = std::exp(top - highest);
  total *= factor;
  for (int64_t i = 0; i < LANES; i++) total += sum[i];
  top = highest;
  return factor;
}

// Partial results of the rows of a key head over the keys begin .. end - 1.
template <typename T>
void read_part(const Call& call, int64_t head, int64_t begin, int64_t end, Found found) {
  using Number = typename T::Number;
  using Row = typename T::Row;
  const int64_t rows = call.rows(), dim = call.key_dim, wide = (call.value_dim + BLOCK - 1) / BLOCK * BLOCK;
  thread_local std::vector<Number> block;
  thread_local std::vector<Row> queries, weights;
  thread_local std::vector<float> scores, factors, masks;
  queries.resize(rows * dim);
  block.resize(BLOCK * std::max(dim + LANES * T::PAIR, CHUNK));
  weights.resize(rows * CHUNK + LANES);
  scores.resize(rows * CHUNK);
  factors.resize(rows);
  for (int64_t m = 0; m < rows; m++) {
    const int64_t from = (head * call.group() + m / call.nodes) * call.query_head;
    T::widen(&queries[m * dim], (const Number*)call.query + from + m % call.nodes * call.query_node, dim);
  }
  std::fill_n(found.tops, rows, LOWEST);
  std::fill_n(found.totals, rows, 0.0f);
  std::fill_n(found.sums, rows * wide, 0.0f);
  for (int64_t key = begin; key < end; key += CHUNK) {
    const int64_t keys = std::min(CHUNK, end - key), inputs = keys + keys % T::PAIR;
    for (int64_t k = 0; k < keys; k += BLOCK) {
      const Number* from = (const Number*)call.key + head * call.key_head + (key + k) * call.key_row;
      key_block((uint32_t*)block.data(), (const uint32_t*)from, call.key_row / T::PAIR, keys - k, dim / T::PAIR);
      products<T>(block.data(), queries.data(), rows, dim, [&](int64_t m, const float* sums) {
        for (int64_t i = 0; i < BLOCK; i += LANES) save(&scores[m * CHUNK + k + i], load(sums + i));
      });
    }
    const float* bias = call.bias ? call.bias + key : nullptr;
    int64_t next = call.keys;
    if (call.tree) {
      masks.resize(call.nodes * CHUNK);
      for (int64_t node = 0; node < call.nodes; node++) call.tree->bias(&masks[node * CHUNK], node, key, keys);
      bias = masks.data(), next = CHUNK;
    }
    for (int64_t m = 0; m < rows; m++)
      factors[m] = weigh<T>(call, &scores[m * CHUNK], bias + m % call.nodes * next, keys, &weights[m * inputs],
                            found.tops[m], found.totals[m]);
    for (int64_t d = 0; d < call.value_dim; d += BLOCK) {
      const Number* from = (const Number*)call.value + head * call.value_head + key * call.value_row + d;
      const int64_t outputs = std::min(BLOCK, call.value_dim - d);
      const bool in_place = T::PAIR == 1 && outputs == BLOCK;
      if (!in_place) T::value_block(block.data(), from, call.value_row, keys, outputs);
      const auto add = [&](int64_t m, const float* sums) {
        float* to = found.sums + m * wide + d;
        for (int64_t i = 0; i < BLOCK; i += LANES) save(to + i, load(to + i) * factors[m] + load(sums + i));
      };
      products<T>(in_place ? from : block.data(), weights.data(), rows, inputs, add, in_place ? call.value_row : BLOCK);
    }
  }
}

// The result of one row from the parts in which its keys were read, `stride` rows apart.
template <typename T>
void join(const Call& call, int64_t query_head, int64_t node, Found found, int64_t parts, int64_t stride) {
  const int64_t wide = (call.value_dim + BLOCK - 1) / BLOCK * BLOCK;
  float top = call.sinks ? call.sinks[query_head] : LOWEST;
  for (int64_t p = 0; p < parts; p++) top = std::max(top, found.tops[p * stride]);
  float total = call.sinks ? std::exp(call.sinks[query_head] - top) : 0.0f;
  for (int64_t p = 0; p < parts; p++) {
    const float factor = std::exp(found.tops[p * stride] - top);
    float* sums = found.sums + p * stride * wide;
    total += found.totals[p * stride] * factor;
    for (int64_t d = 0; d < wide; d += LANES)
      save(found.sums + d, load(sums + d) * factor + (p ? load(found.sums + d) : Floats{}));
  }
  const auto to = (typename T::Number*)call.out + (node * call.heads + query_head) * call.value_dim;
  for (int64_t d = 0; d < call.value_dim; d += BLOCK) {
    for (int64_t i = d; i < d + BLOCK; i += LANES) save(found.sums + i, load(found.sums + i) / total);
    T::store(to + d, found.sums + d, std::min(BLOCK, call.value_dim - d));
  }
}

template <typename T>
void attention(const Call& call) {
  const int64_t rows = call.rows(), wide = (call.value_dim + BLOCK - 1) / BLOCK * BLOCK;
  thread_local std::vector<float> memory;
  const int64_t most = omp_get_max_threads(), even = most / std::gcd(most, call.shared);
  const int64_t parts = std::max<int64_t>(1, std::min(even, call.keys / LEAST_PART));
  const int64_t items = call.shared * parts;
  memory.resize(items * rows * (wide + 2));
  float* const tops = memory.data();
  const auto found = [&](int64_t row) {
    return Found{tops + row, tops + items * rows + row, tops + 2 * items * rows + row * wide};
  };
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    for (int64_t i = items * thread / threads; i < items * (thread + 1) / threads; i++) {
      const int64_t part = i % parts;
      read_part<T>(call, i / parts, call.keys * part / parts, call.keys * (part + 1) / parts, found(i * rows));
    }
#pragma omp barrier
    const int64_t all = call.shared * rows;
    for (int64_t i = all * thread / threads; i < all * (thread + 1) / threads; i++) {
      const int64_t head = i / rows, m = i % rows;
      join<T>(call, head * call.group() + m / call.nodes, m % call.nodes, found(head * parts * rows + m), parts,
              rows);
    }
  }
}

}  // namespace

extern "C" {

// Query, key and value are [heads][rows][dim], with strides for heads and rows.
void treespec_masked_attention(const void* query, const void* key, const void* value, const float* bias,
                               const float* sinks, void* out, const int64_t* sizes, const int64_t* strides,
                               double scale, double softcap, int32_t brain) {
  const Call call{query, key, value, bias, sinks, out, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
                  strides[0], strides[1], strides[2], strides[3], strides[4], strides[5], float(scale),
                  float(softcap), nullptr};
  if (brain)
    attention<BrainChunk>(call);
  else
    attention<SingleChunk>(call);
}

// The entry point for compiled code.
AOTITorchError aoti_torch_cpu_masked_attention(AtenTensorHandle query, AtenTensorHandle key,
                                               AtenTensorHandle value, AtenTensorHandle bias,
                                               AtenTensorHandle* sinks, double scale, double softcap,
                                               AtenTensorHandle* result) {
  const AtenTensorHandle from[] = {query, key, value};
  int64_t size[3][4], strides[6], bias_strides[2], sink_stride = 1;
  int32_t dtype, dtype_of_bias;
  void *data[3], *mask, *sink = nullptr, *out;
  AOTITorchError error = aoti_torch_get_dtype(query, &dtype);
  for (int i = 0; i < 3; i++) {
    error |= aoti_torch_get_data_ptr(from[i], &data[i]);
    for (int64_t dim = 0; dim < 4; dim++) error |= aoti_torch_get_size(from[i], dim, &size[i][dim]);
    error |= aoti_torch_get_stride(from[i], 1, &strides[2 * i]);
    error |= aoti_torch_get_stride(from[i], 2, &strides[2 * i + 1]);
    int64_t last;
    int32_t own;
    error |= aoti_torch_get_stride(from[i], 3, &last) | aoti_torch_get_dtype(from[i], &own);
    const bool odd = own == aoti_torch_dtype_bfloat16() && (strides[2 * i] | strides[2 * i + 1]) & 1;
    if (error || last != 1 || own != dtype || odd) return AOTI_TORCH_FAILURE;
  }
  error |= aoti_torch_get_data_ptr(bias, &mask) | aoti_torch_get_dtype(bias, &dtype_of_bias);
  for (int64_t dim = 0; dim < 2; dim++) error |= aoti_torch_get_stride(bias, dim, &bias_strides[dim]);
  if (sinks)
    error |= aoti_torch_get_data_ptr(*sinks, &sink) | aoti_torch_get_stride(*sinks, 0, &sink_stride);
  const bool flat = bias_strides[1] == 1 && (size[0][2] == 1 || bias_strides[0] == size[1][2]);
  if (error || dtype_of_bias != aoti_torch_dtype_float32() || !flat || sink_stride != 1) return AOTI_TORCH_FAILURE;
  const int64_t heads = size[0][1], nodes = size[0][2], dim = size[2][3];
  const int64_t made[] = {1, nodes, heads, dim}, made_strides[] = {nodes * heads * dim, heads * dim, dim, 1};
  error |= aoti_torch_empty_strided(4, made, made_strides, dtype, aoti_torch_device_type_cpu(), 0, result);
  if (error) return AOTI_TORCH_FAILURE;
  if (aoti_torch_get_data_ptr(*result, &out)) return AOTI_TORCH_FAILURE;
  const int64_t sizes[] = {heads, size[1][1], nodes, size[1][2], size[0][3], dim};
  treespec_masked_attention(data[0], data[1], data[2], (const float*)mask, (const float*)sink, out, sizes, strides,
                            scale, softcap, dtype == aoti_torch_dtype_bfloat16());
  return AOTI_TORCH_SUCCESS;
}

}  // extern "C"
