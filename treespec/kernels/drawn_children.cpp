// Children for a level of a drafted tree: the best tokens of its logits, or draws from their softmax.
//
// Masses are summed in float64, GROUP tokens at a time. A draw finds the group that contains its point, and then
// the token within the group. Rows with a logit that is not finite give arbitrary tokens; the caller detects
// them by the extremes. Sizes and dtypes are not checked here: drawn_children.py checks them.

#include <vector>

namespace {

constexpr int64_t GROUP = 256;              // tokens: a multiple of LANES
constexpr int64_t WORTH_THREADS = 1 << 16;  // logits from which on threads save time

typedef double Doubles __attribute__((vector_size(2 * TREESPEC_BYTES), aligned(8), may_alias));

// A vector of a row's logits as float32; positions behind its end are `padding`.
template <typename Number>
inline Floats logits_at(const Number* row, int64_t i, int64_t width, float padding) {
  const auto wide = [](const Number* from) {
    if constexpr (sizeof(Number) == 2)
      return (Floats)(Brain::words(from) << 16);
    else
      return load(from);
  };
  if (i + LANES <= width) return wide(row + i);
  Number some[LANES] = {};
  std::memcpy(some, row + i, sizeof(Number) * (width - i));
  Floats numbers = wide(some);
  for (int64_t j = width - i; j < LANES; j++) numbers[j] = padding;
  return numbers;
}

inline void put(float* row, int64_t i, int64_t width, Floats numbers) {
  if (i + LANES <= width) return save(row + i, numbers);
  std::memcpy(row + i, &numbers, 4 * (width - i));
}

inline Floats at(const float* row, int64_t i, int64_t width) {
  if (i + LANES <= width) return load(row + i);
  Floats numbers = {};
  std::memcpy(&numbers, row + i, 4 * (width - i));
  return numbers;
}

inline double sum_of(Doubles numbers) {
  double sum = 0;
  for (int64_t i = 0; i < LANES; i++) sum += numbers[i];
  return sum;
}

struct Extremes {
  float low, high;  // NaN if any logit is NaN
  int64_t best;     // the first token with the greatest logit
};

template <typename Number>
Extremes extremes_of(const Number* row, int64_t width) {
  const float first = logits_at(row, 0, width, 0.0f)[0];
  Floats least = Floats{} + first, most = least;
  Ints odd = {}, where = {};
  for (int64_t i = 0; i < width; i += LANES) {
    const Floats numbers = logits_at(row, i, width, first);
    const Ints more = numbers > most;
    least = numbers < least ? numbers : least;
    most = more ? numbers : most;
    where = more ? Ints{} + int32_t(i) : where;
    odd |= numbers != numbers;
  }
  Extremes found = {first, first, 0};
  int32_t any = 0;
  for (int64_t i = 0; i < LANES; i++) {
    const int64_t at = where[i] + (most[i] > first ? i : 0);
    const bool earlier = most[i] == found.high && at < found.best;
    found.low = std::min(found.low, least[i]);
    if (most[i] > found.high || earlier) found = {found.low, most[i], at};
    any |= odd[i];
  }
  if (any) found.low = found.high = NAN;
  return found;
}

// The extremes of several rows.
void join_extremes(const std::vector<Extremes>& rows, float* joined) {
  joined[0] = rows[0].low;
  joined[1] = rows[0].high;
  for (const Extremes& row : rows) {
    if (!(joined[0] <= row.low) && joined[0] == joined[0]) joined[0] = row.low;
    if (!(joined[1] >= row.high) && joined[1] == joined[1]) joined[1] = row.high;
  }
}

// Softmax of a row at a temperature.
template <typename Number>
Extremes probabilities(const Number* row, int64_t width, float temperature, float* probs) {
  const Extremes extremes = extremes_of(row, width);
  const float cold = 1 / temperature;
  Doubles total = {};
  for (int64_t i = 0; i < width; i += LANES) {
    // subtract first: the products could round such that an exponent exceeds 0, for large logits by much
    const Floats weights = exponential((logits_at(row, i, width, -INFINITY) - extremes.high) * cold);
    put(probs, i, width, weights);
    total += __builtin_convertvector(weights, Doubles);
  }
  const float scale = float(1 / sum_of(total));
  for (int64_t i = 0; i < width; i += LANES) put(probs, i, width, at(probs, i, width) * scale);
  return extremes;
}

// The mass of the tokens begin .. end - 1, without tokens that are gone (already drawn).
double mass_of(const float* probs, int64_t begin, int64_t end, const int64_t* gone, int64_t count) {
  const auto next_gone = [&](int64_t from) {
    int64_t next = end;
    for (int64_t i = 0; i < count; i++)
      if (from <= gone[i] && gone[i] < next) next = gone[i];
    return next;
  };
  Doubles sum = {};
  for (int64_t token = begin;;) {
    const int64_t until = next_gone(token);
    for (; token < until; token += LANES) sum += __builtin_convertvector(at(probs, token, until), Doubles);
    if (until == end) return sum_of(sum);
    token = until + 1;
  }
}

// The first token at which the cumulative mass of the tokens that are not gone exceeds the fraction `uniform` of
// their total. If they have no mass, all of them are equally probable; otherwise a token without mass is never
// returned.
int64_t found_at(double uniform, const float* probs, int64_t width, const std::vector<double>& masses,
                 const int64_t* gone, int64_t count) {
  const auto is_gone = [&](int64_t token) { return std::find(gone, gone + count, token) != gone + count; };
  double total = 0;
  for (const double mass : masses) total += mass;
  if (!(total > 0)) {
    int64_t left = std::min(int64_t(uniform * double(width - count)), width - count - 1);
    int64_t token = 0;
    for (; is_gone(token) || left > 0; token++) left -= !is_gone(token);
    return token;
  }
  const double point = uniform * total;
  double below = 0;
  size_t group = 0;
  while (group + 1 < masses.size() && below + masses[group] <= point) below += masses[group++];
  int64_t last = -1;
  for (int64_t token = int64_t(group) * GROUP; token < width; token++) {
    if (!(probs[token] > 0) || is_gone(token)) continue;
    below += probs[token];
    last = token;
    if (below > point) break;  // at the last tokens, rounding can prevent this
  }
  if (last < 0)
    for (last = width - 1; last > 0 && (!(probs[last] > 0) || is_gone(last));) last--;
  return last;
}

struct Draws {
  const double* uniforms;
  int64_t* children;
  int64_t count;
};

void draw(const float* probs, int64_t width, bool distinct, Draws draws) {
  thread_local std::vector<double> masses;
  masses.clear();
  for (int64_t begin = 0; begin < width; begin += GROUP)
    masses.push_back(mass_of(probs, begin, std::min(begin + GROUP, width), nullptr, 0));
  for (int64_t i = 0; i < draws.count; i++) {
    const int64_t gone = distinct ? i : 0;
    const int64_t token = found_at(draws.uniforms[i], probs, width, masses, draws.children, gone);
    draws.children[i] = token;
    if (!distinct) continue;
    const int64_t group = token / GROUP, end = std::min((group + 1) * GROUP, width);
    masses[group] = mass_of(probs, group * GROUP, end, draws.children, gone + 1);
  }
}

}  // namespace

extern "C" {

// plan: for each row, its number of children and the indices of its first uniform and its first child.
void treespec_drawn_children(const void* logits, const int64_t* plan, const double* uniforms, float* probs,
                             int64_t* children, float* extremes, int64_t stride, int64_t rows, int64_t width,
                             double temperature, int32_t distinct, int32_t brain) {
  std::vector<Extremes> found(rows);
#pragma omp parallel for if (rows > 1 && rows * width >= WORTH_THREADS)
  for (int64_t row = 0; row < rows; row++) {
    float* const own = probs + row * width;
    if (brain)
      found[row] = probabilities((const uint16_t*)logits + row * stride, width, float(temperature), own);
    else
      found[row] = probabilities((const float*)logits + row * stride, width, float(temperature), own);
    draw(own, width, distinct, {uniforms + plan[rows + row], children + plan[2 * rows + row], plan[row]});
  }
  join_extremes(found, extremes);
}

// The best token of each row; the first of equals.
void treespec_best_children(const void* logits, int64_t* children, float* extremes, int64_t stride, int64_t rows,
                            int64_t width, int32_t brain) {
  std::vector<Extremes> found(rows);
#pragma omp parallel for if (rows > 1 && rows * width >= WORTH_THREADS)
  for (int64_t row = 0; row < rows; row++) {
    if (brain)
      found[row] = extremes_of((const uint16_t*)logits + row * stride, width);
    else
      found[row] = extremes_of((const float*)logits + row * stride, width);
    children[row] = found[row].best;
  }
  join_extremes(found, extremes);
}

}  // extern "C"
