// e^x, a vector at a time.

namespace {

typedef int32_t Ints __attribute__((vector_size(TREESPEC_BYTES), aligned(4), may_alias));

// e^x for x <= 0, with a relative error of at most 3e-7; 0 for x < -87.
inline Floats exponential(Floats x) {
  const Ints tiny = x < -87.0f;
  const Ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, Ints);  // rounds to nearest, since x <= 0
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  return (Floats)((Ints)(p * (Floats)((n + 127) << 23)) & ~tiny);
}

}  // namespace
