// Attention of the nodes of several texts, each to the rows of its own cache: a layer of a pass over many texts.
//
// Keys and values of the nodes are first written to the caches, whose addresses the caller passes, so that one piece
// of compiled code serves any number of texts of any length. Then each key head of each text is read as in
// masked_attention.cpp; the heads of all texts share the threads. Sizes and dtypes are not checked here.

namespace {

// A text in a pass: where its rows begin, how many it has, the node of the first of them, committed rows, and where
// its nodes begin in the tree arrays.
struct Text {
  int64_t row, count, first, committed, nodes;
};

// Where the rows of a layer of a text lie: addresses, and elements between heads.
struct Place {
  int64_t keys, values, key_head, value_head;
};

struct Item {
  int64_t text, head, begin, end, row;  // keys to read; the row of its first partial result
};

template <typename T>
void write_rows(const Call& call, int64_t head, const void* keys, const void* values, const int64_t* strides,
                int64_t at) {
  using Number = typename T::Number;
  for (int64_t i = 0; i < call.nodes; i++) {
    Number* key = (Number*)call.key + head * call.key_head + (at + i) * call.key_row;
    Number* value = (Number*)call.value + head * call.value_head + (at + i) * call.value_row;
    std::memcpy(key, (const Number*)keys + head * strides[2] + i * strides[3], sizeof(Number) * call.key_dim);
    std::memcpy(value, (const Number*)values + head * strides[4] + i * strides[5], sizeof(Number) * call.value_dim);
  }
}

template <typename T>
void attention_of_texts(const std::vector<Call>& calls, const Text* texts, const void* keys, const void* values,
                        const int64_t* strides) {
  using Number = typename T::Number;
  const int64_t count = calls.size(), shared = calls[0].shared, heads = count * shared;
  const int64_t wide = (calls[0].value_dim + BLOCK - 1) / BLOCK * BLOCK, most = omp_get_max_threads();
  const int64_t even = (2 * most + heads - 1) / heads;  // parts of a head, if it has the keys for them
  thread_local std::vector<float> memory;
  thread_local std::vector<Item> items;
  thread_local std::vector<int64_t> firsts;  // the first item of each text
  items.clear(), firsts.clear();
  int64_t rows = 0;
  for (int64_t t = 0; t < count; t++) {
    firsts.push_back(items.size());
    const int64_t length = calls[t].keys, parts = std::max<int64_t>(1, std::min(even, length / LEAST_PART));
    for (int64_t i = 0; i < shared * parts; i++, rows += calls[t].rows())
      items.push_back({t, i / parts, length * (i % parts) / parts, length * (i % parts + 1) / parts, rows});
  }
  firsts.push_back(items.size());
  memory.resize(rows * (wide + 2));
  float* const tops = memory.data();
  const Item* const all = items.data();
  const int64_t* const begins = firsts.data();
  const int64_t size = items.size();
  const auto found = [=](int64_t row) { return Found{tops + row, tops + rows + row, tops + 2 * rows + row * wide}; };
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads; i++) {
      const Text& text = texts[i / shared];
      write_rows<T>(calls[i / shared], i % shared, (const Number*)keys + text.row * strides[3],
                    (const Number*)values + text.row * strides[5], strides, text.committed + text.first);
    }
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < size; i++) {
      const Item& item = all[i];
      read_part<T>(calls[item.text], item.head, item.begin, item.end, found(item.row));
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads; i++) {
      const int64_t t = i / shared, head = i % shared, parts = (begins[t + 1] - begins[t]) / shared;
      const Call& call = calls[t];
      for (int64_t m = 0; m < call.rows(); m++)
        join<T>(call, head * call.group() + m / call.nodes, m % call.nodes,
                found(all[begins[t] + head * parts].row + m), parts, call.rows());
    }
  }
}

}  // namespace

extern "C" {

// Query, key and value are [heads][rows][dim], with strides for heads and rows; `places` has one line per text;
// `tree` is [3][nodes]: ranks, ends and depths.
void treespec_joined_attention(const void* query, const void* key, const void* value, const int64_t* places,
                               const int64_t* texts, const int32_t* tree, const float* sinks, void* out,
                               const int64_t* sizes, const int64_t* strides, double scale, double softcap,
                               int32_t brain) {
  const int64_t heads = sizes[0], shared = sizes[1], count = sizes[2], nodes = sizes[3], dim = sizes[4],
                value_dim = sizes[5], window = sizes[6], bytes = brain ? 2 : 4;
  const Text* const text = (const Text*)texts;
  const Place* const place = (const Place*)places;
  std::vector<Tree> trees(count);
  std::vector<Call> calls(count);
  for (int64_t t = 0; t < count; t++) {
    const Text& at = text[t];
    const int32_t* const own = tree + at.nodes;
    trees[t] = {own, own + nodes, own + 2 * nodes, at.committed, at.first, window};
    calls[t] = {(const char*)query + bytes * at.row * strides[1], (const void*)place[t].keys,
                (const void*)place[t].values, nullptr, sinks, (char*)out + bytes * at.row * heads * value_dim, heads,
                shared, at.count, at.committed + at.first + at.count, dim, value_dim, strides[0], strides[1],
                place[t].key_head, dim, place[t].value_head, value_dim, float(scale), float(softcap), &trees[t]};
  }
  if (brain)
    attention_of_texts<BrainChunk>(calls, text, key, value, strides);
  else
    attention_of_texts<SingleChunk>(calls, text, key, value, strides);
}

// The entry point for compiled code.
AOTITorchError aoti_torch_cpu_joined_attention(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                                               AtenTensorHandle places, AtenTensorHandle texts, AtenTensorHandle tree,
                                               AtenTensorHandle* sinks, int64_t layer, int64_t window, double scale,
                                               double softcap, AtenTensorHandle* result) {
  const AtenTensorHandle from[] = {query, key, value};
  int64_t size[3][4], strides[6], sink_stride = 1, count, nodes;
  int32_t dtype;
  void *data[3], *place, *text, *trees, *sink = nullptr, *out;
  AOTITorchError error = aoti_torch_get_dtype(query, &dtype);
  for (int i = 0; i < 3; i++) {
    error |= aoti_torch_get_data_ptr(from[i], &data[i]);
    for (int64_t dim = 0; dim < 4; dim++) error |= aoti_torch_get_size(from[i], dim, &size[i][dim]);
    error |= aoti_torch_get_stride(from[i], 1, &strides[2 * i]);
    error |= aoti_torch_get_stride(from[i], 2, &strides[2 * i + 1]);
    int64_t last;
    int32_t own;
    error |= aoti_torch_get_stride(from[i], 3, &last) | aoti_torch_get_dtype(from[i], &own);
    if (error || last != 1 || own != dtype) return AOTI_TORCH_FAILURE;
  }
  error |= aoti_torch_get_data_ptr(places, &place) | aoti_torch_get_data_ptr(texts, &text);
  error |= aoti_torch_get_data_ptr(tree, &trees);
  error |= aoti_torch_get_size(texts, 0, &count) | aoti_torch_get_size(tree, 1, &nodes);
  if (sinks)
    error |= aoti_torch_get_data_ptr(*sinks, &sink) | aoti_torch_get_stride(*sinks, 0, &sink_stride);
  if (error || sink_stride != 1) return AOTI_TORCH_FAILURE;
  const int64_t heads = size[0][1], rows = size[0][2], dim = size[2][3];
  const int64_t made[] = {1, rows, heads, dim}, made_strides[] = {rows * heads * dim, heads * dim, dim, 1};
  error |= aoti_torch_empty_strided(4, made, made_strides, dtype, aoti_torch_device_type_cpu(), 0, result);
  if (error) return AOTI_TORCH_FAILURE;
  if (aoti_torch_get_data_ptr(*result, &out)) return AOTI_TORCH_FAILURE;
  const int64_t sizes[] = {heads, size[1][1], count, nodes, size[0][3], dim, window};
  treespec_joined_attention(data[0], data[1], data[2], (const int64_t*)place + 4 * layer * count,
                            (const int64_t*)text, (const int32_t*)trees, (const float*)sink, out, sizes, strides,
                            scale, softcap, dtype == aoti_torch_dtype_bfloat16());
  return AOTI_TORCH_SUCCESS;
}

}  // extern "C"
