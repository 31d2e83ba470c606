// The walk of an acceptance rule down a tree: from the target's logits and the draft's rows to path and bonus.
//
// Residuals are kept as probabilities in float32, as in the rules; masses are float64. Where a rule would refuse
// (logits that are not finite, a child that the draft could not have drawn), the walk ends with REFUSED, and the
// caller runs the rule itself, which raises the error. Sizes, dtypes and token ids are not checked here:
// walked_tree.py checks them.

#include <cmath>

namespace {

enum Kind : int32_t { NAIVE, ONEHOT, RRS, RRSW, GREEDY };

constexpr int64_t NONE = -1, REFUSED = -2;

struct Walk {
  const int64_t* tokens;
  const int32_t *first, *following, *row;  // for each node its first child, next sibling, row of drafts, or NONE
  const float* drafts;
  int64_t draft_stride;
  const double* uniforms;
  int64_t used;
  int64_t width;
  Kind kind;
};

// The distribution that children were drawn from, given the elder siblings removed from it: the row over its mass
// without them, or, if that mass is 0, the uniform distribution over all other tokens. Division by the mass is
// not replaced by a product, since the inverse of a small mass overflows.
struct Remaining {
  const float* row;  // null: 1 for every token
  float mass;

  float of(int64_t token) const { return (row ? row[token] : 1) / mass; }

  Floats of(int64_t i, int64_t width) const { return (row ? at(row, i, width) : Floats{} + 1) / mass; }
};

Remaining remaining(const float* row, int64_t width, const std::vector<int64_t>& gone) {
  if (gone.empty()) return {row, 1};
  const double mass = mass_of(row, 0, width, gone.data(), gone.size());
  if (mass > 0) return {row, float(mass)};
  return {nullptr, float(width - int64_t(gone.size()))};
}

// norm([left - draft]+), in place; `left` is unchanged if the residual has no mass. Tokens that are gone have draft
// probability 0.
void reject(float* left, int64_t width, const Remaining& draft, const std::vector<int64_t>& gone) {
  const auto rest_at = [&](int64_t i) {
    const Floats rest = at(left, i, width) - draft.of(i, width);
    return rest > 0.0f ? rest : Floats{};
  };
  thread_local std::vector<float> whole;
  whole.clear();
  Doubles total = {};
  for (int64_t i = 0; i < width; i += LANES) total += __builtin_convertvector(rest_at(i), Doubles);
  double mass = sum_of(total);
  for (const int64_t token : gone) {
    whole.push_back(left[token]);
    mass += left[token] - std::max(left[token] - draft.of(token), 0.0f);
  }
  if (!(mass > 0)) return;
  for (int64_t i = 0; i < width; i += LANES) put(left, i, width, rest_at(i) / float(mass));
  for (size_t j = 0; j < gone.size(); j++) left[gone[j]] = whole[j] / float(mass);
}

// The row without a token, renormalised; unchanged if no other token has mass.
void strike(float* left, int64_t width, int64_t token) {
  const double mass = mass_of(left, 0, width, &token, 1);
  if (!(mass > 0)) return;
  left[token] = 0;
  for (int64_t i = 0; i < width; i += LANES) put(left, i, width, at(left, i, width) / float(mass));
}

// The accepted child, each tried against the distribution it was drawn from; or NONE, with the residual in `left`.
int64_t accepted(Walk& walk, int64_t node, float* left) {
  thread_local std::vector<int64_t> gone;
  gone.clear();
  for (int64_t child = walk.first[node]; child >= 0; child = walk.following[child]) {
    const int64_t token = walk.tokens[child];
    if (walk.kind == ONEHOT) {
      if (walk.uniforms[walk.used++] < left[token]) return child;
      strike(left, walk.width, token);
      continue;
    }
    const Remaining draft = remaining(walk.drafts + walk.row[node] * walk.draft_stride, walk.width, gone);
    if (!(draft.of(token) > 0)) return REFUSED;
    if (walk.uniforms[walk.used++] < left[token] / draft.of(token)) return child;
    reject(left, walk.width, draft, gone);
    if (walk.kind == RRSW) gone.push_back(token);
  }
  return NONE;
}

int64_t child_with(const Walk& walk, int64_t node, int64_t token) {
  int64_t child = walk.first[node];
  while (child >= 0 && walk.tokens[child] != token) child = walk.following[child];
  return child;
}

struct Decision {
  int64_t next;   // the node to continue from; NONE or REFUSED
  int64_t bonus;  // the bonus token if `next` is NONE
};

template <typename Number>
Decision decide(Walk& walk, int64_t node, const Number* logits, float temperature, float* left) {
  const Extremes extremes = walk.kind == GREEDY ? extremes_of(logits, walk.width)
                                                : probabilities(logits, walk.width, temperature, left);
  if (!std::isfinite(extremes.low) || !std::isfinite(extremes.high)) return {REFUSED, NONE};
  if (walk.kind == GREEDY) return {child_with(walk, node, extremes.best), extremes.best};
  if (walk.kind != NAIVE) {
    const int64_t next = accepted(walk, node, left);
    if (next != NONE) return {next, NONE};
  }
  int64_t token = NONE;
  draw(left, walk.width, false, {walk.uniforms + walk.used++, &token, 1});
  return {walk.kind == NAIVE ? child_with(walk, node, token) : NONE, token};
}

}  // namespace

extern "C" {

// plan: for each node its first child, next sibling, previous sibling and row of drafts; -1 for none.
// verdict: the last node of the path, or REFUSED; the bonus; the number of uniforms used.
void treespec_walked_tree(const void* logits, const float* drafts, const int64_t* tokens, const int32_t* plan,
                          const double* uniforms, int64_t* verdict, int64_t stride, int64_t draft_stride,
                          int64_t size, int64_t width, double temperature, int32_t kind, int32_t brain) {
  thread_local std::vector<float> left;
  left.resize(width);
  Walk walk = {tokens, plan, plan + size, plan + 3 * size, drafts, draft_stride, uniforms, 0, width, Kind(kind)};
  int64_t node = 0;
  for (;;) {
    const int64_t row = node * stride;
    const Decision found = brain ? decide(walk, node, (const uint16_t*)logits + row, float(temperature), left.data())
                                 : decide(walk, node, (const float*)logits + row, float(temperature), left.data());
    if (found.next < 0) {
      verdict[0] = found.next == REFUSED ? REFUSED : node;
      verdict[1] = found.bonus;
      verdict[2] = walk.used;
      return;
    }
    node = found.next;
  }
}

}  // extern "C"
